// Tabs, and what happens once a second.

function selectTab(name) {
  for (const one of ['chat', 'watch']) {
    const isSelected = one === name;
    byId(one).hidden = !isSelected;
    byId(`tab-${one}`).setAttribute('aria-selected', String(isSelected));
    byId(`tab-${one}`).tabIndex = isSelected ? 0 : -1;
  }
  history.replaceState(null, '', name === 'chat' ? '#' : `#${name}`);
}

function notice(text) {
  if (byId('notice').textContent !== text) byId('notice').textContent = text;
  byId('notice').hidden = text === '';
}

// Once: the name of the model, when there is one.
async function showModel() {
  const models = await (await ask('/v1/models')).json();
  const model = models.data[0];
  if (model) byId('model').textContent = model.id;
  return Boolean(model);
}

async function lookOnce(watch) {
  try {
    if (byId('model').textContent === '' && !(await showModel())) {
      notice('The model is being loaded.');
      return;
    }
    await watch.look();
    notice('');
  } catch (error) {
    if (error.status === 401) {
      await askForKey();
    } else {
      notice(error instanceof HttpError ? `The server says: ${error.message}` : 'The server does not answer.');
    }
  }
}

async function lookForEver(watch) {
  for (;;) {
    await lookOnce(watch);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

for (const name of ['chat', 'watch']) {
  byId(`tab-${name}`).addEventListener('click', () => selectTab(name));
  byId(`tab-${name}`).addEventListener('keydown', (event) => {
    if (!['ArrowLeft', 'ArrowRight', 'Home', 'End'].includes(event.key)) return;
    event.preventDefault();
    const other = event.key === 'Home' ? 'chat' : event.key === 'End' ? 'watch' : name === 'chat' ? 'watch' : 'chat';
    selectTab(other);
    byId(`tab-${other}`).focus();
  });
}
const isWide = matchMedia('(min-width: 56rem)');
const openWhereWide = () => { byId('parameters').open = isWide.matches; };
isWide.addEventListener('change', openWhereWide);
openWhereWide();
selectTab(location.hash === '#watch' ? 'watch' : 'chat');
new Chat();
lookForEver(new Watch());
