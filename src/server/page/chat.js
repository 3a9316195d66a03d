// The conversation: it is kept here, sent whole with every turn, and shown as it comes.

class Chat {
  constructor() {
    this.messages = [];  // {role, content, element}
    this.running = null;  // the AbortController of an answer that is being written
    this.rounds = 0;      // how often the last turn was answered again
    byId('composer').addEventListener('submit', (event) => {
      event.preventDefault();
      this.send();
    });
    byId('prompt').addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send();
      }
    });
    document.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && !byId('key-dialog').open) this.stop();
    });
    byId('settings').addEventListener('submit', (event) => event.preventDefault());
    byId('stop').addEventListener('click', () => this.stop());
    byId('again').addEventListener('click', () => this.regenerate());
    byId('clear').addEventListener('click', () => this.clear());
  }

  send() {
    const text = byId('prompt').value;
    if (this.running || text.trim() === '') return;
    byId('prompt').value = '';
    byId('empty').hidden = true;
    this.rounds = 0;
    this.messages.push({role: 'user', content: text, element: this.show('user', text)});
    this.answer();
  }

  stop() {
    if (this.running) this.running.abort();
  }

  regenerate() {
    if (this.running) return;
    const before = this.messages.at(-1)?.role === 'assistant' ? this.messages.pop() : undefined;
    before?.element.remove();
    if (this.messages.length === 0) return;
    ++this.rounds;
    this.answer(before);
  }

  clear() {
    this.stop();
    for (const message of this.messages) message.element.remove();
    this.messages = [];
    byId('empty').hidden = false;
    byId('again').disabled = true;
    this.say('');
    byId('prompt').focus();
  }

  // Of the request. The last message is the answer that is asked for.
  body() {
    const system = byId('system').value.trim();
    const body = {
      messages: [
        ...(system ? [{role: 'system', content: system}] : []),
        ...this.messages.slice(0, -1).map(({role, content}) => ({role, content})),
      ],
      stream: true,
      stream_options: {include_usage: true},
      return_progress: true,
    };
    for (const id of ['temperature', 'top_p', 'max_tokens', 'seed']) {
      const input = byId(id);
      if (!input.checkValidity()) throw new Error(`${input.labels[0].textContent}: ${input.validationMessage}`);
      if (input.value !== '') body[id] = Number(input.value);
    }
    if (body.seed !== undefined) body.seed += this.rounds;
    return body;
  }

  // Asks for the answer to the conversation, and shows it as it comes. `before`: the one in whose
  // place it comes.
  async answer(before) {
    const running = new AbortController();
    this.running = running;
    const element = this.show('assistant', '');
    const message = {role: 'assistant', content: '', reasoning: '', element, began: performance.now(), tokens: 0};
    this.messages.push(message);
    this.setBusy(message, true);
    try {
      await this.stream(message, running.signal);
      this.note(message, this.figures(message));
      this.say(message.finish === 'length' ? 'The answer is as long as it may be.' : 'The answer is complete.');
    } catch (error) {
      const wasStopped = running.signal.aborted;
      if (message.content === '') {
        this.takeBack(message, before);
        this.say(wasStopped ? 'Stopped before the first word.' : `There is no answer: ${error.message}`);
      } else if (wasStopped) {
        this.note(message, `Stopped. ${this.figures(message)}`);
        this.say('Stopped.');
      } else {
        this.note(message, `The answer ended: ${error.message}`, true);
        this.say('The answer ended with an error.');
      }
    } finally {
      this.running = null;
      this.setBusy(message, false);
      byId('again').disabled = !this.messages.some((one) => one.role === 'user');
    }
  }

  // Of an answer that ended without a word: the conversation is as it was before it was asked for,
  // so that a turn that a server refuses is not sent again with each later one.
  takeBack(message, before) {
    clearTimeout(message.timer);
    if (this.messages.at(-1) !== message) return;  // a new chat was begun
    this.messages.pop().element.remove();
    if (before) {
      --this.rounds;
      this.messages.push(before);
      byId('messages').append(before.element);
      return;
    }
    const turn = this.messages.pop();
    turn.element.remove();
    byId('prompt').value = [turn.content, byId('prompt').value].filter((text) => text !== '').join('\n');
    byId('empty').hidden = this.messages.length > 0;
  }

  async stream(message, signal) {
    const request = () => ask('/v1/chat/completions', {
      method: 'POST',
      headers: {'Content-Type': 'application/json'},
      body: JSON.stringify(this.body()),
      signal,
    });
    let response;
    try {
      response = await request();
    } catch (error) {
      if (error.status !== 401) throw error;
      await askForKey();
      response = await request();
    }
    for await (const data of events(response)) {
      if (data === '[DONE]') return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      this.take(message, chunk);
    }
    throw new Error('the connection was closed before its end');
  }

  take(message, chunk) {
    if (chunk.usage) message.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    this.showProgress(message, chunk.prompt_progress);
    message.finish = choice.finish_reason ?? message.finish;
    if (choice.delta?.content || choice.delta?.reasoning_content) {
      message.first ??= performance.now();
      message.last = performance.now();
    }
    message.content += choice.delta?.content ?? '';
    message.reasoning += choice.delta?.reasoning_content ?? '';
    message.isStale = true;
    // Not for each token: a long answer is made anew each time.
    message.timer ??= setTimeout(() => this.render(message), 60);
  }

  // How much of the prompt was read; undefined: all of it.
  showProgress(message, read) {
    if (!read) {
      message.progress?.remove();
      return;
    }
    message.progress ??= message.element.appendChild(make('p', {class: 'note'}));
    message.progress.textContent = `Reading the prompt: ${Math.round((100 * read.processed) / read.total)} %`;
  }

  render(message) {
    clearTimeout(message.timer);
    message.timer = undefined;
    if (!message.isStale) return;
    message.isStale = false;
    const log = byId('messages');
    const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    const text = message.element.querySelector('.text');
    text.replaceChildren(...markdownNodes(message.content));
    if (message.reasoning) {
      let details = message.element.querySelector('details');
      if (!details) {
        details = make('details', {}, make('summary', {}, 'Reasoning'), make('div'));
        text.before(details);
      }
      details.lastChild.replaceChildren(...markdownNodes(message.reasoning));
    }
    if (isAtEnd) log.scrollTop = log.scrollHeight;
  }

  figures(message) {
    const words = [];
    if (message.first) words.push(`first words after ${seconds((message.first - message.began) / 1e3)}`);
    const usage = message.usage;
    if (usage) {
      words.unshift(`${amount(usage.completion_tokens)} tokens`);
      const time = (message.last - message.first) / 1e3;
      if (time > 0 && usage.completion_tokens > 1) words.push(`${amount((usage.completion_tokens - 1) / time)} tokens/s`);
      const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
      words.push(`prompt ${amount(usage.prompt_tokens)} tokens${cached > 0 ? `, ${amount(cached)} of them cached` : ''}`);
    }
    return words.join(' · ');
  }

  show(role, text) {
    const body = make('div', {class: 'text'}, text);
    const element = make('article', {class: `message ${role}`},
                         make('h3', {}, role === 'user' ? 'You' : byId('model').textContent || 'Model'), body);
    byId('messages').append(element);
    byId('messages').scrollTop = byId('messages').scrollHeight;
    return element;
  }

  note(message, text, hasFailed = false) {
    this.render(message);
    message.element.append(make('p', {class: hasFailed ? 'note failed' : 'note'}, text));
    byId('messages').scrollTop = byId('messages').scrollHeight;
  }

  setBusy(message, isBusy) {
    message.element.classList.toggle('busy', isBusy);
    message.element.setAttribute('aria-busy', String(isBusy));
    byId('stop').disabled = !isBusy;
    byId('send').disabled = isBusy;
    if (isBusy) {
      byId('again').disabled = true;
      this.say('The model writes.');
    }
  }

  say(text) {
    byId('progress').textContent = text;
  }
}

// The data of a response's server-sent events, one after the other.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const blocks = (rest + value).split('\n\n');
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split('\n').filter((line) => line.startsWith('data:')).map((line) => line.slice(5).trim());
      if (data.length > 0) yield data.join('\n');
    }
  }
}
