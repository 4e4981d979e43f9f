// The cells of a heat map: values on a shared axis, and their colors.

export interface Cells {
  x: number[];
  /** The values by row and column; NaN where a row has no value. */
  values: number[][];
  pixels: Uint8ClampedArray;
  low: number;
  high: number;
  isLog: boolean;
}

// Colors of the viridis color map, from low to high.
const VIRIDIS: [number, number, number][] = [[68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137], [53, 183, 121], [110, 206, 88], [181, 222, 43], [253, 231, 37]];
const LOG_RATIO = 100;

export function cells(lines: ({ x: number[]; y: number[] } | undefined)[], isDark: boolean): Cells {
  const x = [...new Set(lines.flatMap((line) => line?.x ?? []))].sort((a, b) => a - b);
  const columns = new Map(x.map((value, at) => [value, at]));
  const values = lines.map((line) => {
    const row: number[] = new Array(x.length).fill(NaN);
    line?.x.forEach((value, at) => {
      row[columns.get(value) as number] = line.y[at] ?? NaN;
    });
    return row;
  });
  const finite = values.flat().filter(Number.isFinite);
  const low = finite.reduce((least, each) => Math.min(least, each), Infinity);
  const high = finite.reduce((most, each) => Math.max(most, each), -Infinity);
  const isLog = low > 0 && high / low >= LOG_RATIO;
  const scale = (value: number): number => (high === low ? 0.5 : isLog ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
  const pixels = new Uint8ClampedArray(x.length * lines.length * 4);
  values.forEach((row, at) =>
    row.forEach((value, column) => {
      const [red, green, blue] = Number.isFinite(value) ? viridis(scale(value)) : isDark ? [27, 33, 41] : [238, 240, 243];
      pixels.set([red, green, blue, 255], (at * x.length + column) * 4);
    }),
  );
  return { x, values, pixels, low: finite.length ? low : NaN, high: finite.length ? high : NaN, isLog };
}

export function viridis(share: number): [number, number, number] {
  const at = Math.max(0, Math.min(1, share)) * (VIRIDIS.length - 1);
  const below = VIRIDIS[Math.floor(at)] as [number, number, number];
  const above = VIRIDIS[Math.ceil(at)] as [number, number, number];
  const part = at - Math.floor(at);
  return [0, 1, 2].map((each) => Math.round((below[each] as number) * (1 - part) + (above[each] as number) * part)) as [number, number, number];
}
