// What the server does: figures of /metrics over time, the last step, the experts, the plan.

// {name: [{labels, value}]} of Prometheus' text.
function parseMetrics(text) {
  const metrics = {};
  for (const line of text.split('\n')) {
    const match = line.match(/^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value;
    (metrics[match[1]] ??= []).push({labels, value: Number(match[3])});
  }
  return metrics;
}

const valueOf = (metrics, name) => metrics[name]?.[0]?.value ?? 0;

// A server on ranks may plan again while it runs, once an epoch at most.
const LOOKS_BETWEEN_PLANS = 10;

class Watch {
  constructor() {
    const chart = (id, ...rest) => new TimeChart(byId(id), ...rest);
    this.tokens = chart('chart-tokens', 'Tokens per second', ['written', 'read'], amount);
    this.requests = chart('chart-requests', 'Requests', ['running', 'waiting'], amount);
    this.cache = chart('chart-kv', 'KV cache in use', [''], percent, 1);
    this.wait = chart('chart-wait', 'Time of a step', ['mean'], (value) => (value === null ? '–' : seconds(value)));
    this.isPaused = false;
    this.before = null;
    this.looks = 0;
    byId('pause').addEventListener('click', () => {
      this.isPaused = !this.isPaused;
      byId('pause').setAttribute('aria-pressed', String(this.isPaused));
      byId('watching').textContent = this.isPaused ? 'Paused.' : 'Looking once a second.';
    });
  }

  // Once a second. Pictures of steps are made only while somebody sees them.
  async look() {
    if (this.isPaused || document.hidden) return;
    this.addMetrics(parseMetrics(await (await ask('/metrics')).text()));
    if (byId('watch').hidden) return;
    if (this.looks++ % LOOKS_BETWEEN_PLANS === 0) await this.showPlan();
    await this.showStep();
  }

  // Only another plan is drawn, so that what was opened of this one stays open.
  async showPlan() {
    const plan = await (await ask('/v1/plan')).json();
    if (plan.id === this.shownPlan) return;
    this.shownPlan = plan.id;
    byId('plan').replaceChildren(...planNodes(plan));
  }

  addMetrics(metrics) {
    const now = {
      time: performance.now() / 1e3,
      written: valueOf(metrics, 'vllm:generation_tokens_total'),
      read: valueOf(metrics, 'vllm:prompt_tokens_total') - valueOf(metrics, 'vllm:prefix_cache_hits_total'),
      steps: valueOf(metrics, 'convene:step_seconds_count'),
      stepSeconds: valueOf(metrics, 'convene:step_seconds_sum'),
    };
    this.requests.add(now.time, [valueOf(metrics, 'vllm:num_requests_running'),
                                 valueOf(metrics, 'vllm:num_requests_waiting')]);
    this.cache.add(now.time, [valueOf(metrics, 'vllm:kv_cache_usage_perc')]);
    const before = this.before;
    this.before = now;
    if (!before || now.written < before.written) return;  // the first look, or another server
    const time = now.time - before.time;
    this.tokens.add(now.time, [(now.written - before.written) / time, (now.read - before.read) / time]);
    const steps = now.steps - before.steps;
    this.wait.add(now.time, [steps > 0 ? (now.stepSeconds - before.stepSeconds) / steps : null]);
  }

  async showStep() {
    const {step, experts} = await (await ask('/v1/steps/last')).json();
    if (step && step.name + step.measured_s !== this.shownStep) {
      this.shownStep = step.name + step.measured_s;
      byId('step-words').textContent = stepWords(step);
      byId('step-table').replaceChildren(stepTable(step));
      await this.showGantt();
    }
    const total = experts.tokens.flat().reduce((sum, count) => sum + count, 0);
    if (total === 0 || total === this.shownTokens) return;
    this.shownTokens = total;
    byId('experts-words').textContent =
        'Tokens of the last minutes by layer and expert: the stronger the colour, the more of the layer’s tokens; framed is the most.';
    byId('experts').replaceChildren(heatMap(experts.tokens));
  }

  // The server draws it (convene gantt does the same). It enters the page as the elements it was parsed to.
  async showGantt() {
    const text = await (await ask('/v1/steps/last.svg')).text();
    const picture = new DOMParser().parseFromString(text, 'image/svg+xml').documentElement;
    if (picture.nodeName !== 'svg') return;
    for (const element of picture.querySelectorAll('script, foreignObject, a, image, use')) element.remove();
    picture.setAttribute('role', 'img');
    picture.setAttribute('aria-label', byId('step-words').textContent);
    byId('gantt').replaceChildren(document.importNode(picture, true));
  }
}

function stepWords(step) {
  let words = `${step.name}: measured ${seconds(step.measured_s)}`;
  if (step.predicted_s) {
    words += `, predicted ${seconds(step.predicted_s)} (measured ${
        signedPercent(step.measured_s / step.predicted_s - 1)}), by ${step.predicted_by}`;
  } else {
    words += '; not predicted yet, since nothing is known of its tasks';
  }
  const idle = step.lanes.filter(({idle_share: share}) => share !== null).map(
      ({rank, lane, idle_share: share}) => `rank ${rank} ${lane} ${percent(share)}`);
  words += `. Idle: ${idle.join(', ')}.`;
  return step.wire_bytes > 0 ? `${words} Between ranks: ${bytes(step.wire_bytes)}.` : words;
}

function stepTable(step) {
  const details = make('details', {}, make('summary', {}, 'Figures by kind of task'));
  details.append(table('Seconds of a rank by kind of task',
                       ['Task', 'Measured#', 'Predicted#', 'Waited for others#', 'Between ranks#'],
                       step.tasks.map((task) => [
                         task.kind, seconds(task.measured_s), task.predicted_s === null ? '–' : seconds(task.predicted_s),
                         task.waiting_s > 0 ? seconds(task.waiting_s) : '–',
                         task.wire_bytes > 0 ? bytes(task.wire_bytes) : '–',
                       ])));
  details.open = byId('step-table').querySelector('details')?.open ?? false;
  return details;
}

const chosenWords = {
  search: 'chosen by a search among the plans that these ranks can execute',
  file: 'given as a file (--plan)',
  options: 'given by options',
  'one process': 'one process: nothing is divided',
  usual: 'the usual one: nothing was searched',
};

function planNodes(plan) {
  const nodes = [];
  const facts = make('dl');
  const fact = (name, text) => facts.append(make('dt', {}, name), make('dd', {}, text));
  fact('In force', plan.name ?? plan.plan.layout ?? plan.id);
  fact('How it came', chosenWords[plan.chosen_by] ?? plan.chosen_by);
  fact('Id', `${plan.id}, the last part of system_fingerprint of every answer`);
  const within = (interval, show) => (interval ? ` (${show(interval[0])} to ${show(interval[1])})` : '');
  const figures = plan.predicted ?? {};
  if (figures.throughput_tokens_per_s) {
    fact('Predicted', `${amount(figures.throughput_tokens_per_s)} tokens/s${
                          within(figures.throughput_tokens_per_s_interval, amount)}, time to first token ${
                          seconds(figures.ttft_s)}, per token ${seconds(figures.time_per_token_s)}, with ${
                          figures.batch} sequence${figures.batch === 1 ? '' : 's'} together`);
  }
  const memory = figures.memory_per_rank;
  if (memory) fact('Memory of a rank', `${bytes(memory.bytes)} of ${bytes(memory.limit_bytes)}`);
  if (plan.why_chosen) fact('Why', plan.why_chosen);
  nodes.push(facts);
  if (plan.not_explained) {
    nodes.push(make('p', {class: 'quiet'}, `There are no alternatives to compare: ${plan.not_explained}`));
  }
  if (plan.alternatives.length > 0) {
    nodes.push(make('h3', {class: 'part'}, 'Alternatives, and why they lost'),
               make('div', {class: 'scroll', tabindex: 0, role: 'group', 'aria-label': 'Alternatives'},
                    table('Plans that were not chosen', ['Slower by#', 'Plan', 'What takes more', 'Where it would win'],
                          plan.alternatives.map(
                              (one) => [signedPercent(one.slower), one.name, one.reason, one.would_win]))));
  }
  if (plan.flips?.length > 0) {
    nodes.push(make('h3', {class: 'part'}, 'What would change the choice'),
               make('ul', {}, ...plan.flips.map(({words}) => make('li', {}, words))));
  }
  return nodes;
}
