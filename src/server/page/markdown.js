// The part of Markdown that models write: paragraphs, headings, lists, fenced code, and in a line
// code, bold and italics. It makes elements of text; HTML in it stays text, a link is its words
// with the address behind them, and there are no images.

const fencePattern = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const headingPattern = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const itemPattern = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

// What stands in a line, as nodes.
function inlineNodes(text) {
  const nodes = [];
  const pattern =
      /(`+)(.+?)\1(?!`)|\*\*(?=\S)(.+?)(?<=\S)\*\*|__(?=\S)(.+?)(?<=\S)__(?!\w)|\*(?=[^\s*])(.+?)(?<=[^\s*])\*(?!\*)|(?<!\w)_(?=\S)(.+?)(?<=\S)_(?!\w)|!?\[([^\]]*)\]\(([^()\s]+)\)/gs;
  let at = 0;
  for (const match of text.matchAll(pattern)) {
    if (match.index > at) nodes.push(text.slice(at, match.index));
    const [whole, , code, strong, strong2, em, em2, label, address] = match;
    if (code !== undefined) {
      nodes.push(make('code', {}, code));
    } else if (strong !== undefined || strong2 !== undefined) {
      nodes.push(make('strong', {}, ...inlineNodes(strong ?? strong2)));
    } else if (em !== undefined || em2 !== undefined) {
      nodes.push(make('em', {}, ...inlineNodes(em ?? em2)));
    } else {
      nodes.push(label ? `${label} (${address})` : address);
    }
    at = match.index + whole.length;
  }
  if (at < text.length) nodes.push(text.slice(at));
  return nodes;
}

// Reads a list from lines[at] on: items with their continuations, deeper ones as lists of their own.
function readList(lines, at) {
  const first = lines[at].match(itemPattern);
  const indent = first[1].length;
  const isOrdered = /\d/.test(first[2]);
  const list = make(isOrdered ? 'ol' : 'ul', isOrdered ? {start: parseInt(first[2], 10)} : {});
  let text = null;
  let item = null;
  const endText = () => {
    if (text !== null) item.append(...filled(make('span'), {}, inlineNodes(text)).childNodes);
    text = null;
  };
  while (at < lines.length) {
    const match = lines[at].match(itemPattern);
    if (match && match[1].length > indent + 1 && item) {
      endText();
      const [inner, next] = readList(lines, at);
      item.append(inner);
      at = next;
    } else if (match && match[1].length + 1 >= indent && /\d/.test(match[2]) === isOrdered) {
      endText();
      item = make('li');
      list.append(item);
      text = match[3];
      ++at;
    } else if (!match && text !== null && /^\s+\S/.test(lines[at]) && !fencePattern.test(lines[at])) {
      text += `\n${lines[at].trim()}`;
      ++at;
    } else if (lines[at].trim() === '' && at + 1 < lines.length && itemPattern.test(lines[at + 1])) {
      ++at;  // a blank line between items
    } else {
      break;
    }
  }
  endText();
  return [list, at];
}

// The elements of a whole text.
function markdownNodes(source) {
  const lines = source.replace(/\r\n?/g, '\n').split('\n');
  const nodes = [];
  let paragraph = [];
  const endParagraph = () => {
    if (paragraph.length > 0) nodes.push(make('p', {}, ...inlineNodes(paragraph.join('\n'))));
    paragraph = [];
  };
  let at = 0;
  while (at < lines.length) {
    const fence = lines[at].match(fencePattern);
    const heading = lines[at].match(headingPattern);
    if (fence) {
      endParagraph();
      const code = [];
      // Without an end, as while it is being written, the rest is code.
      const isEnd = (line) => line.trim().startsWith(fence[1]) && /^[`~]+$/.test(line.trim());
      for (++at; at < lines.length && !isEnd(lines[at]); ++at) code.push(lines[at]);
      ++at;
      nodes.push(make('pre', {tabindex: 0, 'aria-label': `Code ${fence[2].trim()}`.trim(), role: 'group'},
                      make('code', {}, code.join('\n'))));
    } else if (heading) {
      endParagraph();
      nodes.push(make('h4', {}, ...inlineNodes(heading[2])));
      ++at;
    } else if (itemPattern.test(lines[at])) {
      endParagraph();
      const [list, next] = readList(lines, at);
      nodes.push(list);
      at = next;
    } else {
      if (lines[at].trim() === '') {
        endParagraph();
      } else {
        paragraph.push(lines[at]);
      }
      ++at;
    }
  }
  endParagraph();
  return nodes;
}
