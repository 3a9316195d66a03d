// Pictures of figures over time and of experts' tokens, as SVG. Each says in words what it shows.

const historySeconds = 300;
const fewestSeconds = 60;  // that a chart shows

const minutes = (span) => (span < 90 ? '1 minute' : `${Math.round(span / 60)} minutes`);

// A small line chart in a figure: the value of now in large, the last minutes below it. `lines`
// names what is drawn, the second one dashed; more than two are not told apart.
class TimeChart {
  constructor(figure, title, lines, show, limit = null) {
    this.figure = figure;
    this.title = title;
    this.lines = lines;
    this.show = show;    // a value in words
    this.limit = limit;  // the top of the scale; null: the largest value
    this.points = [];    // {time, values}
    this.draw();
  }

  add(time, values) {
    this.points.push({time, values});
    while (this.points[0].time < time - historySeconds) this.points.shift();
    this.draw();
  }

  draw() {
    const width = 240;
    const height = 64;
    const last = this.points.at(-1);
    const all = this.points.flatMap((point) => point.values).filter((value) => value !== null);
    const top = this.limit ?? Math.max(...all, 1e-9);
    const end = last ? last.time : 0;
    const span = Math.max(fewestSeconds, end - (this.points[0]?.time ?? end));
    const x = (time) => width - (end - time) / span * width;
    const y = (value) => height - 2 - value / top * (height - 12);
    const words = this.lines.map((line, i) => `${line} ${last ? this.show(last.values[i]) : '–'}`).join(', ');
    const picture = makeSvg(
        'svg', {class: 'chart', viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', role: 'img',
                'aria-label': `${this.title}, last ${minutes(span)}. Now: ${words}. Most: ${this.show(top)}.`});
    for (const value of [0, top]) {
      picture.append(makeSvg('line', {class: 'grid', x1: 0, x2: width, y1: y(value), y2: y(value),
                                      'vector-effect': 'non-scaling-stroke'}));
    }
    this.lines.forEach((_, i) => {
      const points = this.points.filter((point) => point.values[i] !== null);
      if (points.length === 0) return;
      const path = points.map((point) => `${x(point.time).toFixed(1)},${y(point.values[i]).toFixed(1)}`);
      picture.append(makeSvg('polyline', {class: i === 0 ? 'first' : 'second', points: path.join(' '),
                                          'vector-effect': 'non-scaling-stroke'}));
    });
    const now = make('p', {class: 'figure'});
    this.lines.forEach((line, i) => {
      if (i > 0) now.append(' ');
      now.append(last ? this.show(last.values[i]) : '–', ' ', make('small', {}, line));
    });
    this.figure.replaceChildren(make('figcaption', {}, this.title), now, picture, this.keys(top, span));
  }

  // Which line is which, where there are two, and what the upper edge means.
  keys(top, span) {
    const keys = make('p', {class: 'keys'});
    if (this.lines.length > 1) {
      this.lines.forEach((line, i) => {
        const sample = makeSvg('svg', {class: 'chart', viewBox: '0 0 22 8', 'aria-hidden': 'true'},
                               makeSvg('line', {class: i === 0 ? 'first' : 'second', x1: 0, x2: 22, y1: 4, y2: 4}));
        keys.append(make('span', {}, sample, line));
      });
    }
    keys.append(make('span', {}, `up to ${this.show(top)} in ${minutes(span)}`));
    return keys;
  }
}

// Rows are layers, columns experts, or several neighbours where there are more than fit; stronger is
// more of the layer's tokens. Each layer's busiest expert has a frame, and is named beside the row.
function heatMap(tokens) {
  const layers = tokens.map((counts, layer) => ({layer, counts})).filter(({counts}) => counts.length > 0);
  const numExperts = Math.max(...layers.map(({counts}) => counts.length));
  const perCell = Math.ceil(numExperts / 128);
  const numCells = Math.ceil(numExperts / perCell);
  const left = 64;
  const right = 190;
  const width = 1060;
  const cell = (width - left - right) / numCells;
  const row = Math.max(12, Math.min(24, cell));
  const picture = makeSvg('svg', {class: 'heat', viewBox: `0 0 ${width} ${layers.length * row + 26}`, role: 'img',
                                  'aria-label': 'Share of the tokens by layer and expert; the busiest expert of each ' +
                                      'layer is named at the end of its row'});
  layers.forEach(({layer, counts}, i) => {
    const total = counts.reduce((sum, count) => sum + count, 0);
    const busiest = counts.indexOf(Math.max(...counts));
    const y = i * row;
    picture.append(makeSvg('text', {x: 0, y: y + row / 2 + 4}, `layer ${layer}`));
    for (let at = 0; at < numCells; ++at) {
      const part = counts.slice(at * perCell, (at + 1) * perCell);
      if (part.length === 0) continue;
      const sum = part.reduce((all, count) => all + count, 0);
      const share = total > 0 ? sum / total : 0;
      // Relative to even use: 3 times the mean and more is the full colour.
      const strength = Math.min(1, share * counts.length / part.length / 3);
      const isMost = total > 0 && busiest >= at * perCell && busiest < at * perCell + part.length;
      const name = perCell === 1 ? `expert ${at}` : `experts ${at * perCell} to ${at * perCell + part.length - 1}`;
      picture.append(makeSvg(
          'rect', {x: left + at * cell, y, width: Math.max(1, cell - 1), height: row - 1,
                   'fill-opacity': (0.05 + 0.95 * strength).toFixed(3), ...(isMost ? {class: 'most'} : {})},
          makeSvg('title', {}, `layer ${layer}, ${name}: ${amount(sum)} tokens, ${percent(share)}`)));
    }
    const times = total > 0 ? counts[busiest] * counts.length / total : 0;
    picture.append(makeSvg('text', {x: width - right + 10, y: y + row / 2 + 4},
                           total > 0 ? `expert ${busiest}: ${times.toFixed(2)} × the mean` : 'no tokens'));
  });
  const y = layers.length * row + 18;
  picture.append(makeSvg('text', {x: left, y}, 'expert 0'),
                 makeSvg('text', {x: width - right, y, 'text-anchor': 'end'}, `expert ${numExperts - 1}`));
  return picture;
}
