/** Small pictures by the pack: of what is in view only, and of what has left the view no more. */
import { getPictures } from "./api";

const AT_ONCE = 64;
const KEPT = 2000;

interface Pack { rows: Set<number>; stop: AbortController }

export class Pictures {
  private urls = new Map<string, string>(); // of blobs, the one that was looked at longest ago first
  private packs = new Map<number, Pack>(); // that are under way, by side
  private wanted = new Map<number, number[]>();
  private missing = new Set<string>();
  private painting = false;

  constructor(
    private generation: string,
    private paint: () => void,
  ) {}

  /** The address of a picture that is here. */
  url(row: number, side: number): string | undefined {
    const key = `${side} ${row}`;
    const url = this.urls.get(key);
    if (url && this.urls.delete(key)) this.urls.set(key, url);
    return url;
  }

  /** Says which pictures of a side are looked at, the most wanted first; those asked for before are not, any more. */
  want(rows: number[], side: number): void {
    this.wanted.set(side, rows.filter((row) => !this.urls.has(`${side} ${row}`) && !this.missing.has(`${side} ${row}`)));
    const pack = this.packs.get(side);
    if (pack && !this.wanted.get(side)!.some((row) => pack.rows.has(row))) {
      pack.stop.abort();
      this.packs.delete(side);
    }
    if (!this.packs.has(side)) void this.fetch(side);
  }

  private async fetch(side: number): Promise<void> {
    const rows = this.wanted.get(side)!.slice(0, AT_ONCE);
    if (!rows.length) return;
    const pack = { rows: new Set(rows), stop: new AbortController() };
    this.packs.set(side, pack);
    try {
      await getPictures(this.generation, side, rows, pack.stop.signal, (row, content) => {
        pack.rows.delete(row);
        if (content.size) this.keep(`${side} ${row}`, content);
        else this.missing.add(`${side} ${row}`);
      });
    } catch {
      if (pack.stop.signal.aborted) return; // somebody else has taken over
      for (const row of pack.rows) this.missing.add(`${side} ${row}`); // until the page is loaded again
    }
    this.packs.delete(side);
    this.want(this.wanted.get(side)!, side);
  }

  private keep(key: string, content: Blob): void {
    this.urls.set(key, URL.createObjectURL(content));
    for (const [oldest, url] of this.urls) {
      if (this.urls.size <= KEPT) break;
      URL.revokeObjectURL(url);
      this.urls.delete(oldest);
    }
    if (this.painting) return;
    this.painting = true; // once for all that come before the next frame
    requestAnimationFrame(() => {
      this.painting = false;
      this.paint();
    });
  }
}
