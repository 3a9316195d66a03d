'use strict';
// Elements are made here and nowhere else, and only of text: whatever a server or a model wrote
// enters the page as text nodes, so that none of it can become markup.

const byId = (id) => document.getElementById(id);

// make('p', {class: 'quiet'}, 'text', child): children are nodes or text.
function make(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function makeSvg(name, attributes = {}, ...children) {
  return filled(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

// A table with a row of headings; columns whose heading ends with '#' hold numbers.
function table(caption, headings, rows) {
  const isNumber = headings.map((heading) => heading.endsWith('#'));
  const cell = (name, text, i, more = {}) =>
      make(name, {...(isNumber[i] ? {class: 'number'} : {}), ...more}, text);
  return make(
      'table', {}, make('caption', {class: 'hidden'}, caption),
      make('thead', {},
           make('tr', {}, ...headings.map(
                              (text, i) => cell('th', text.replace(/#$/, ''), i, {scope: 'col'})))),
      make('tbody', {}, ...rows.map((row) => make('tr', {}, ...row.map((text, i) => cell('td', text, i))))));
}

// --- Figures in words.

function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  if (value >= 1) return `${value.toPrecision(3)} s`;
  if (value >= 1e-3) return `${(value * 1e3).toPrecision(3)} ms`;
  return `${(value * 1e6).toFixed(0)} µs`;
}

function bytes(value) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (value >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    ++unit;
  }
  return `${unit === 0 ? value : value.toPrecision(3)} ${units[unit]}`;
}

function amount(value) {
  if (value >= 1000) return Math.round(value).toLocaleString('en');
  return value >= 10 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;
const signedPercent = (share) => `${share >= 0 ? '+' : '−'}${(100 * Math.abs(share)).toFixed(1)} %`;

// --- The server.

// The API key, where the server wants one: kept while the tab is open.
const keyName = 'convene-api-key';

class HttpError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// fetch with the key. A response that is no success is thrown as an HttpError with the server's words.
async function ask(path, options = {}) {
  const key = sessionStorage.getItem(keyName);
  const headers = {...(options.headers || {}), ...(key ? {Authorization: `Bearer ${key}`} : {})};
  const response = await fetch(path, {...options, headers});
  if (response.ok) return response;
  let message = `status ${response.status}`;
  try {
    message = (await response.json()).error.message || message;
  } catch {
    // Not the server's own words: a proxy's.
  }
  throw new HttpError(response.status, message);
}

// Asks for a key in a dialog; the promise is kept when that is closed. Who asks meanwhile gets the same.
let keyAsked = null;

function askForKey() {
  return keyAsked ??= new Promise((resolve) => {
    byId('key-wrong').textContent =
        sessionStorage.getItem(keyName) ? 'The server does not know this API key.' : '';
    byId('key-dialog').addEventListener('close', () => {
      const key = byId('key').value.trim();
      if (key) sessionStorage.setItem(keyName, key);
      keyAsked = null;
      resolve();
    }, {once: true});
    byId('key-dialog').showModal();
    byId('key').select();
  });
}
