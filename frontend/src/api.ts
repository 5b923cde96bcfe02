/** What the server knows, and how it is asked. */

export interface Group {
  id: number;
  name: string;
  named: boolean;
  origin: "known" | "earlier" | "new";
  size: number;
  unsure: number;
  cover: number[];
  near: number[];
}

export interface Step { number: number; kind: string; count: number; name: string | null }

export interface Summary {
  revision: string;
  generation: string;
  title: string;
  can_write: boolean; // whether groups may be written beside the photographs
  photos: number;
  stage: number;
  groups: Group[];
  alike: [number, number][]; // that may be one
  undo: Step | null;
  redo: Step | null;
  formats: { name: string; title: string }[]; // in which groups are exported
}

/** What a correction has made of it, and the photographs that are not as they were in the state `base`. */
export interface Answer extends Summary {
  base: string;
  changed: { rows: number[]; group: number[]; sure: number[]; flags: number[] } | null;
}

/** Of every photograph: its group, -1 or -2, how sure in 0..255, and flags. */
export interface Columns { group: Int32Array; sure: Uint8Array; flags: Uint8Array }

/** What is different since the last photographs came: ids of groups, with sizes before and after, and rows. */
export interface Change {
  new: number[];
  grown: [number, number, number][];
  shrunk: [number, number, number][];
  moved: number[];
  doubted: number[];
}

/** An exported folder, with sentences about it. */
export interface Exported { place: string; photographs: number; lines: string[] }

/** What found the groups; empty is what is not known. */
export interface About {
  model: string;
  method: string;
  card: string;
  estimate: [number, number, number] | null; // how many groups there may be: the likeliest, least, most
  place: string;
}

/** How much of what is in groups is right, in 0..1; null as long as nothing was drawn blind. */
export interface Right {
  share: number | null;
  low: number | null;
  high: number | null;
  drawn: number;
  wrong: number;
  looked: number;
  row: number | null; // drawn to be looked at next
}

export interface Why {
  group: number | null;
  state: "found" | "pinned" | "reviewed";
  sure: number | null;
  measured: boolean; // whether the model has measured how often it is right when it is so sure
  like: number[];
  others: { id: number; like: number }[];
}

export interface Facts { path: string; date: string }

export const NEWEST = 2; // bits of a photograph
export const AWAY = 4; // its file is not where it was
export const REVIEWED = 8; // a person has looked at it, and put or left it where it is
export const NOWHERE = -1;
export const ASIDE = -2; // set aside, or like what was
export const COMING = -3; // a group that the server has not named yet

/** A correction with its arguments as in Python; images are rows. */
export type Edit = { do: string; images?: number[]; category?: number; to?: number | null | (number | null)[] } & Record<string, unknown>;

/** Whether two photographs are of one group, that of the second. */
export interface Question { first: number; second: number; group: number }

/** What the server would not do, in its words. */
export class Refused extends Error {}

/** There is nothing left to ask for. */
export class Gone extends Refused {}

const KEPT_ALIVE = 15_000; // characters: a browser sends 64 kB in all after a page was closed

let base = ""; // of a page of its own; elsewhere the project is at an address of its own
export const setBase = (place: string): void => void (base = place);
export const home = (): string => base;
export const address = (path: string): string => `${base}api/${path}`;

async function asked(path: string, options?: RequestInit): Promise<Response> {
  const answer = await fetch(address(path), options);
  if (answer.ok) return answer;
  const text = await answer.text();
  if (answer.status === 410) throw new Gone(text);
  throw new Refused(answer.status === 409 ? (JSON.parse(text) as { error: string }).error : text);
}

export const get = async <T>(path: string, options?: RequestInit): Promise<T> => (await asked(path, options)).json() as Promise<T>;
/** Sends what a person said; a short text arrives although the page is closed meanwhile. */
export const post = <T>(path: string, value: object): Promise<T> => {
  const body = JSON.stringify(value);
  return get(path, { method: "POST", body, keepalive: body.length < KEPT_ALIVE });
};
/** Numbers of every photograph: `map`, x and y of each in 0..1, or `dates`, seconds by the clock of its camera; NaN where nobody knows. */
export const getBytes = async (path: string): Promise<ArrayBuffer> => (await asked(path)).arrayBuffer();

export async function getColumns(): Promise<Columns> {
  const content = await getBytes("columns");
  const n = content.byteLength / 6;
  return {
    group: new Int32Array(content, 0, n),
    sure: new Uint8Array(content, 4 * n, n),
    flags: new Uint8Array(content, 5 * n, n),
  };
}

/** Takes small pictures as they come, in the order of the rows; an empty one is of a photograph that has none. */
export async function getPictures(generation: string, side: number, rows: number[], signal: AbortSignal, take: (row: number, content: Blob) => void): Promise<void> {
  const answer = await asked(`pictures/${generation}/${side}?rows=${rows.join()}`, { signal });
  const reader = answer.body!.getReader();
  let held = new Uint8Array();
  for (let at = 0; at < rows.length; ) {
    const { done, value } = await reader.read();
    if (done) throw new Refused("The answer ended early.");
    const all = new Uint8Array(held.length + value.length);
    all.set(held);
    all.set(value, held.length);
    held = all;
    const lengths = new DataView(held.buffer);
    let from = 0;
    while (from + 4 <= held.length && from + 4 + lengths.getUint32(from, true) <= held.length) {
      const to = from + 4 + lengths.getUint32(from, true);
      take(rows[at++], new Blob([held.subarray(from + 4, to)]));
      from = to;
    }
    held = held.slice(from);
  }
}
