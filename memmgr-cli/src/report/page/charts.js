// The data of a recording, and how its charts are drawn. No library, no network.
'use strict';

const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;

/** Bytes with the unit that suits them. */
function people(bytes) {
  if (bytes < 1024) return bytes + (bytes === 1 ? ' byte' : ' bytes');
  const units = ['KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
  let unit = -1;
  do { bytes /= 1024; unit++; } while (bytes >= 1024 && unit < units.length - 1);
  return +bytes.toFixed(bytes < 10 ? 2 : 1) + ' ' + units[unit];
}

const grouped = (number) => Math.round(number).toLocaleString('en-US');

/** Microseconds with the unit that suits them. */
function duration(micros) {
  if (micros < 1e3) return Math.round(micros) + ' µs';
  if (micros < 1e6) return (micros / 1e3).toFixed(1) + ' ms';
  if (micros < 12e7) return (micros / 1e6).toFixed(3) + ' s';
  return (micros / 6e7).toFixed(2) + ' min';
}

/** A recording with its arrays unpacked. */
class Recording {
  constructor(data) {
    Object.assign(this, data);
    this.at = data.at ? new Uint32Array(bytesOf(data.at)) : null;
    for (const name of ['live', 'reserved', 'times', 'place', 'size']) this[name] = new Float64Array(bytesOf(data[name]));
    for (const name of ['reserved_at', 'start', 'end']) this[name] = new Uint32Array(bytesOf(data[name]));
    for (const name of ['stream', 'owner']) this[name] = new Uint16Array(bytesOf(data[name]));
    this.count = this.start.length;
    const lastRegion = this.regions[this.regions.length - 1];
    this.height = lastRegion ? lastRegion[1] + lastRegion[2] : 1;
    this.most = Math.max(1, this.peak, mostOf(this.reserved));
    this.idle = this.live.map((live, p) => Math.max(0, this.reservedAt(this.momentOf(p)) - live));
    this.mostIdle = Math.max(1, mostOf(this.idle));
  }

  momentOf(point) { return this.at ? this.at[point] : point; }

  /** The last point at or before a moment. */
  pointAt(moment) {
    if (!this.at) return Math.max(0, Math.min(this.live.length - 1, Math.floor(moment)));
    return lastAtOrBefore(this.at, moment);
  }

  reservedAt(moment) {
    if (!this.reserved_at.length || moment < this.reserved_at[0]) return 0;
    return this.reserved[lastAtOrBefore(this.reserved_at, moment)];
  }

  /** Microseconds of a moment, between the known ones by proportion. */
  timeOf(moment) {
    const n = this.times.length;
    if (!n) return moment;
    const place = moment / this.time_step;
    const low = Math.min(Math.floor(place), n - 2 < 0 ? 0 : n - 2);
    const from = low * this.time_step;
    const to = Math.min(from + this.time_step, this.last);
    const part = to > from ? Math.min(1, (moment - from) / (to - from)) : 0;
    return this.times[low] + ((this.times[low + 1] ?? this.times[low]) - this.times[low]) * part;
  }

  /** The moment of a time, the other way round. */
  momentAt(time) {
    const low = Math.min(lastAtOrBefore(this.times, time), Math.max(0, this.times.length - 2));
    const from = low * this.time_step;
    const to = Math.min(from + this.time_step, this.last);
    const span = (this.times[low + 1] ?? this.times[low]) - this.times[low];
    return Math.min(this.last, from + (span > 0 ? (time - this.times[low]) / span * (to - from) : 0));
  }

  addressOf(place) {
    const region = this.regions.findLast((r) => r[1] <= place) ?? this.regions[0];
    if (!region) return '';
    return '0x' + (BigInt(region[0]) + BigInt(Math.round(place - region[1]))).toString(16);
  }

  /** The block at a moment and a place, or the smallest within a few pixels. */
  blockAt(moment, place, slackX, slackY) {
    let best = -1, least = Infinity;
    for (let b = 0; b < this.count; b++) {
      const dx = Math.max(0, this.start[b] - moment, moment - this.end[b]);
      const dy = Math.max(0, this.place[b] - place, place - this.place[b] - this.size[b]);
      if (dx > slackX || dy > slackY) continue;
      const far = dx / (slackX || 1) + dy / (slackY || 1);
      if (far < least) { least = far; best = b; }
    }
    return best;
  }
}

/** The largest of an array that is too long to be spread into arguments. */
function mostOf(array) {
  let most = 0;
  for (const value of array) if (value > most) most = value;
  return most;
}

function lastAtOrBefore(sorted, value) {
  let low = 0, high = sorted.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (sorted[middle] <= value) low = middle; else high = middle - 1;
  }
  return low;
}

/** Round steps for an axis of `span`, about `count` of them; powers of two for bytes. */
function niceStep(span, count, binary) {
  const raw = span / count || 1;
  if (binary) return 2 ** Math.ceil(Math.log2(raw));
  const ten = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((n) => n * ten).find((n) => n >= raw) ?? 10 * ten;
}

// Colours: a ramp for what is ordered, ten that are told apart for what is not.
const RAMP = ['#fde0a5', '#f9b573', '#ee8a62', '#d5605f', '#ac3f6b', '#7a2a70', '#431a5e'];
const RAMP_DARK = ['#4b2a6b', '#7d3a82', '#ab4c80', '#d4636f', '#ee8a62', '#f9b573', '#fde9bd'];
const APART = ['#3b7fc4', '#e08214', '#2f9e62', '#c8457e', '#8a6bd1', '#a6761d', '#1fa3b3', '#d95f4c', '#7c8b2c', '#5c6f8c'];
const OTHER = '#8d95a3';

/** How blocks are coloured: a number of a group for each, and the groups' names and colours. */
function colouring(recording, by, dark) {
  const ramp = dark ? RAMP_DARK : RAMP;
  const groups = [];
  if (by === 'size' || by === 'lifetime') {
    const sizes = by === 'size';
    const edges = sizes ? [12, 15, 18, 21, 24, 27] : [2, 4, 7, 10, 13, 16];
    const name = (edge) => sizes ? people(2 ** edge) : grouped(2 ** edge);
    for (let g = 0; g <= edges.length; g++) {
      const text = g === 0 ? 'below ' + name(edges[0]) : 'from ' + name(edges[g - 1]);
      groups.push([text + (sizes ? '' : ' calls'), ramp[g]]);
    }
    const group = (b) => {
      const log = Math.log2(Math.max(1, sizes ? recording.size[b] : recording.end[b] - recording.start[b]));
      let g = 0;
      while (g < edges.length && log >= edges[g]) g++;
      return g;
    };
    return { groups, group };
  }
  if (by === 'kept') {
    return { groups: [['freed', dark ? '#4a566b' : '#b9c3d3'], ['never freed', dark ? '#ff8fa3' : '#c2183c']],
      group: (b) => recording.end[b] > recording.last ? 1 : 0 };
  }
  const names = by === 'stream' ? recording.streams : recording.owners;
  const of = by === 'stream' ? recording.stream : recording.owner;
  // The ten that hold most have colours of their own.
  const held = new Map();
  for (let b = 0; b < recording.count; b++) {
    held.set(of[b], (held.get(of[b]) ?? 0) + recording.size[b] * (recording.end[b] - recording.start[b]));
  }
  const order = [...held].sort((a, b) => b[1] - a[1]).slice(0, APART.length).map(([key]) => key);
  order.forEach((key, g) => groups.push([names[key] ?? 'another', APART[g]]));
  if (held.size > order.length) groups.push([`${held.size - order.length} others`, OTHER]);
  const place = new Map(order.map((key, g) => [key, g]));
  return { groups, group: (b) => place.get(of[b]) ?? order.length };
}

/** A colour as a pixel of a canvas. */
function pixel(colour) {
  const number = parseInt(colour.slice(1), 16);
  return (255 << 24 | (number & 255) << 16 | (number >> 8 & 255) << 8 | number >> 16) >>> 0;
}
