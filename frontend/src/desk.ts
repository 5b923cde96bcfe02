/** The state of a window, and everything that can be done to it. */
import { address, Answer, ASIDE, AWAY, Change, Columns, COMING, Edit, get, getBytes, getColumns, Gone, Group, NEWEST, NOWHERE, post, Refused, REVIEWED, Right, Summary, Step } from "./api";
import { Pictures } from "./pictures";
import { t, Words } from "./texts";

const SCREENS = ["groups", "desk", "check", "same", "map", "changed"] as const; // that are no grid
const PLACES = [...SCREENS, "group", "unsure", "new", "none", "all", "found", "alike", "moved", "doubted", "away", "aside"] as const;
export type Screen = (typeof SCREENS)[number];
export type Place = (typeof PLACES)[number];
export type Order = "typical" | "unsure" | "file" | "date" | "late";
export type GroupOrder = "size" | "unsure" | "name" | "id";
export type Filter = "any" | "unnamed" | "new" | "known";
export type Layer =
  | { kind: "large"; row: number; why: boolean }
  | { kind: "move" | "new"; rows: number[] }
  | { kind: "merge"; ids: number[] }
  | { kind: "dissolve"; id: number }
  | { kind: "file"; row: number }
  | { kind: "take" | "regroup" | "keys" };

const NAMES_AT_ONCE = 500;
const UNSURE_BELOW = 128;
const BLIND_EACH = 5; // of what is sorted one by one, one is drawn blind
const STAYS_MS = 1500;
const SLOW_MS = 1000;
const SAID_MS = 10_000;
const REFUSED_MS = 30_000;
const ARRIVES_MS = 500; // from a word about a place to the place
const SMALLEST = 96;

export class Desk {
  summary: Summary | null = null;
  columns: Columns = { group: new Int32Array(), sure: new Uint8Array(), flags: new Uint8Array() };
  pictures!: Pictures;
  byId = new Map<number, Group>();
  place: Place = "groups";
  group = NOWHERE;
  row = 0;
  words = "";
  order: Order = "typical";
  groupOrder: GroupOrder = "size";
  filter: Filter = "any";
  side = 148;
  shown: number[] = [];
  selected = new Set<number>();
  chosen = new Set<number>();
  focus = 0;
  anchor = 0;
  naming: number | null = null;
  refocus: "first" | "cell" | "list" | null = null; // what the grid, or the cards, give the focus to, once; the first only after a key
  card = NOWHERE; // the group whose card is the stop of the keyboard
  layers: Layer[] = [];
  change: Change | null = null;
  status = "";
  messages = 0; // how often something was said
  edits = 0; // made in this window
  lost = false;
  over = "";
  private saidAt = 0;
  private lostWhy = "";
  counts = this.tally();
  right: Right | null = null;
  private rightAsked = 0; // how often
  isBlind = false; // whether what is sorted now was drawn, and not the least sure
  private retaken: number | null = null; // whose answer was taken back
  private reached = -1; // in the order of what is sorted
  private answers = 0;
  private found: number[] = [];
  private known?: Float64Array | null; // dates, `null` until they are here
  private names = new Map<number, string[]>();
  private settling = 0;
  private fading = 0;
  sorting: number | null = null; // the photograph that is sorted now, until a person goes on; another window does not take it away
  private left: number[] = []; // photographs that a correction took away from here, the last one last
  lastMove: number | null = null;
  private editing: Promise<unknown> = Promise.resolve();
  private leaving = new AbortController();
  private at = location.hash; // what is shown
  private went = false; // by a step in here, and not by Back, Forward or a bookmark

  /** Is told whether it stands within another page, what to do once other photographs are there, what paints it anew, and which photograph of the grid has the focus. */
  constructor(
    readonly isInside: boolean,
    private renew: () => void,
    readonly changed: () => void,
    private focused: () => number | undefined,
  ) {}

  // What is there

  async start(): Promise<void> {
    window.addEventListener("hashchange", () => void this.read(), this.leaving);
    window.addEventListener("pagehide", () => this.keepView(), this.leaving);
    await this.take(await get<Summary>("state"));
    await this.read();
    void this.follow();
  }

  /** Nobody looks at it any more. */
  leave(): void {
    this.leaving.abort();
  }

  lose(error: unknown): void {
    this.lost = true;
    this.lostWhy = error instanceof Refused ? error.message : "";
    if (error instanceof Gone) this.over = error.message;
    this.changed();
  }

  /** Takes in what other windows and the command line do, as long as somebody looks. */
  private async follow(): Promise<void> {
    while (!this.leaving.signal.aborted) {
      if (document.hidden) await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
      try {
        const since = this.summary!.revision;
        const summary = await get<Summary>(this.lost ? "state" : `state?since=${encodeURIComponent(since)}`); // news are waited for
        await this.editing; // whose answer is newer than this one, and costs less
        const isNews = summary.revision !== since && this.summary!.revision === since;
        if (this.lost || isNews) {
          this.lost = false;
          await this.take(summary);
          this.show();
        }
      } catch (error) {
        this.lose(error);
        if (this.over) return;
        await new Promise((done) => setTimeout(done, 1000));
      }
    }
  }

  private async take(summary: Summary | Answer): Promise<void> {
    if (this.summary && this.summary.generation !== summary.generation) return this.renew();
    const changed = "changed" in summary && summary.base === this.summary?.revision ? summary.changed : null;
    if (changed) {
      const { group, sure, flags } = this.columns;
      changed.rows.forEach((row, at) => ([group[row], sure[row], flags[row]] = [changed.group[at], changed.sure[at], changed.flags[at]]));
    } else this.columns = await getColumns();
    this.pictures ??= new Pictures(summary.generation, () => this.changed());
    this.counts = this.tally();
    for (const group of summary.groups) if (!group.named) group.name = t("unnamedGroup", { id: String(group.id) });
    this.summary = summary;
    this.byId = new Map(summary.groups.map((group) => [group.id, group]));
    this.chosen = new Set([...this.chosen].filter((id) => this.byId.has(id)));
    if (this.place !== "group" || this.byId.has(this.group)) return;
    this.say("groupGone");
    this.go("groups");
  }

  /** How many the places hold, once for every state. */
  private tally() {
    const { group, flags } = this.columns;
    const counts = { unsure: 0, open: 0, reviewed: 0, new: 0, none: 0, all: 0, away: 0, aside: 0 };
    for (let row = 0; row < group.length; row++) {
      if (this.isAway(row)) {
        counts.away++;
        continue;
      }
      counts.all++;
      if (this.isOpen(row)) counts.open++;
      else if (group[row] >= 0) counts.reviewed++;
      if (group[row] === ASIDE) counts.aside++;
      else if (group[row] === NOWHERE) counts.none++;
      else if (this.isUnsure(row)) counts.unsure++;
      if (flags[row] & NEWEST && group[row] !== ASIDE) counts.new++;
    }
    return counts;
  }

  picture(row: number, side: number): string {
    return address(`picture/${this.summary!.generation}/${row}/${side}`);
  }

  /** When photographs were taken, once somebody wants to know. */
  private get dates(): Float64Array | null {
    if (this.known === undefined) {
      this.known = null;
      void getBytes("dates").then((content) => ((this.known = new Float64Array(content)), this.show()), (error) => this.fail(error));
    }
    return this.known;
  }

  name(row: number): string {
    const chunk = Math.floor(row / NAMES_AT_ONCE);
    const known = this.names.get(chunk);
    if (known) return known[row % NAMES_AT_ONCE] ?? "";
    this.names.set(chunk, []);
    void get<string[]>(`names?from=${chunk * NAMES_AT_ONCE}`).then((names) => {
      this.names.set(chunk, names);
      this.changed();
    });
    return "";
  }

  groupName(id: number | null): string {
    if (id === ASIDE) return t("asidePhotos").toLocaleLowerCase();
    return id === null || id === NOWHERE ? t("noGroup") : (this.byId.get(id)?.name ?? "");
  }

  /** Whether some groups were there before these photographs: where all are new nothing need say so. */
  get hasKnown(): boolean {
    return this.summary!.groups.some((each) => each.origin !== "new");
  }

  /** Whether its file is not where it was. */
  isAway(row: number): boolean {
    return Boolean(this.columns.flags[row] & AWAY);
  }

  /** Whether it is in a group and no person has looked at it there. */
  isOpen(row: number): boolean {
    const { group, flags } = this.columns;
    return !(flags[row] & (REVIEWED | AWAY)) && group[row] >= 0;
  }

  isUnsure(row: number): boolean {
    return this.columns.sure[row] < UNSURE_BELOW && this.isOpen(row);
  }

  /** Asks how much is right, and which photograph was drawn. */
  async loadRight(): Promise<void> {
    const turn = ++this.rightAsked;
    const right = await get<Right>("right");
    if (turn !== this.rightAsked) return; // somebody has gone on meanwhile, or asked about a later state
    this.right = right;
    if (this.retaken === this.right.row) this.isBlind = this.sorting !== null && this.sorting === this.right.row;
    this.changed();
  }

  label(row: number): string {
    const parts = [this.name(row), this.groupName(this.columns.group[row])];
    if (this.columns.flags[row] & REVIEWED) parts.push(t("setByYou"));
    if (this.isUnsure(row)) parts.push(t("unsure"));
    if (this.isAway(row)) parts.push(t("away"));
    return parts.join(", ");
  }

  /** Groups as the list shows them. */
  get groups(): Group[] {
    const words = this.words.toLocaleLowerCase();
    const kept = this.summary!.groups.filter(
      (each) =>
        (each.size > 0 || Boolean(words)) && // a known one without a photograph here
        each.name.toLocaleLowerCase().includes(words) &&
        (this.filter === "any" || (this.filter === "unnamed" ? !each.named : (each.origin === "new") === (this.filter === "new"))),
    );
    const orders: Record<GroupOrder, (a: Group, b: Group) => number> = {
      size: (a, b) => b.size - a.size || a.id - b.id,
      unsure: (a, b) => b.unsure - a.unsure || a.id - b.id,
      name: (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }),
      id: (a, b) => b.id - a.id,
    };
    return kept.sort(orders[this.groupOrder]);
  }

  /** The group among these that the keyboard stops at. */
  stopOf(groups: Group[]): number | undefined {
    return (groups.find((each) => each.id === this.card) ?? groups[0])?.id;
  }

  /** Whether the server has said which photographs these are, and in which order. */
  get isRanked(): boolean {
    return ["found", "alike", "moved", "doubted"].includes(this.place);
  }

  private rowsOf(place: Place): number[] {
    if (this.isRanked) return [...this.found];
    const all = Array.from(this.columns.group.keys());
    return all.filter((row) => !this.isGone(row, place) || (place === "desk" && row === this.sorting));
  }

  /** Whether a place does not hold a photograph, or not any more. */
  isGone(row: number, place = this.place): boolean {
    const { group, flags } = this.columns;
    if (place === "group") return group[row] !== this.group;
    if (place === "unsure") return !this.isUnsure(row);
    if (place === "desk") return !this.isOpen(row);
    if (this.isAway(row) !== (place === "away")) return ["none", "new", "all", "aside", "away"].includes(place);
    if (place === "none") return group[row] !== NOWHERE;
    if (place === "aside") return group[row] !== ASIDE;
    return place === "new" && (!(flags[row] & NEWEST) || group[row] === ASIDE);
  }

  // What is shown

  /** Goes to a place; it is in the address, so that Back and a bookmark lead there. */
  go(place: Place, value: number | string = "", more: Record<string, string> = {}): void {
    this.went = true;
    location.hash = new URLSearchParams({ view: place, ...(value === "" ? {} : { of: String(value) }), ...more }).toString();
  }

  /** Remembers which photograph was looked at, and the order, for who comes back. */
  private keepView(): void {
    if (this.shown.length && !this.isInside) sessionStorage.setItem(`view ${this.at}`, JSON.stringify([this.shown[this.focus], this.order]));
  }

  /** Shows the place of the address, once what it lists is there; who has gone on meanwhile stays where they are. */
  private async read(): Promise<void> {
    const { hash } = location;
    const asked = new URLSearchParams(hash.slice(1));
    const of = asked.get("of") ?? "";
    const named = (asked.get("view") as Place | null) ?? "groups";
    const isThere = named === "group" ? this.byId.has(Number(of)) : PLACES.includes(named);
    const place = isThere ? named : "groups";
    if (!isThere && !this.status) this.say(PLACES.includes(named) ? "groupGone" : "noPlace");
    try {
      const alike = place === "alike" ? await get<{ rows: number[] }>(`alike?${new URLSearchParams({ rows: of, ...(asked.get("in") ? { within: asked.get("in")! } : {}) }).toString()}`) : null;
      const found = alike ? alike.rows
        : place === "found" ? await get<number[]>(`search?q=${encodeURIComponent(of)}`)
        : this.found; // prettier-ignore
      const change = ["changed", "moved", "doubted"].includes(place) ? await get<Change>("changed") : this.change;
      if (location.hash !== hash) return;
      this.found = place === "moved" || place === "doubted" ? change![place] : found;
      this.change = change;
    } catch (error) {
      return this.fail(error);
    }
    this.keepView();
    const kept = this.went || this.isInside ? null : sessionStorage.getItem(`view ${hash}`);
    [this.at, this.went] = [hash, false];
    const isArrival = Boolean(this.shown.length || this.place !== place);
    if (Date.now() - this.saidAt > ARRIVES_MS) this.tell(""); // it was about another place
    this.place = place;
    this.layers = [];
    this.naming = this.sorting = null;
    this.reached = -1;
    this.isBlind = false;
    if (place === "group") this.group = this.card = Number(of);
    this.right = null;
    this.rightAsked++;
    this.left = [];
    this.selected.clear();
    if (place !== "groups") this.chosen.clear();
    this.shown = [];
    this.focus = this.anchor = 0;
    if (isArrival) this.refocus = "first";
    const usual: Order = place === "unsure" || place === "desk" ? "unsure" : place === "group" ? "typical" : "file";
    const [row, order] = kept ? (JSON.parse(kept) as [number, Order]) : [-1, usual];
    this.order = order;
    this.show();
    this.focus = this.anchor = Math.max(0, this.shown.indexOf(row));
  }

  /** Lists the rows of the place anew; while one of them is large they stay, so that nothing but a person changes what is seen. */
  show(): void {
    clearTimeout(this.settling);
    if (this.layers.some((each) => each.kind === "large")) return this.changed();
    const { sure } = this.columns;
    const rows = this.rowsOf(this.place);
    if (!this.isRanked && this.order !== "file") {
      const sign = this.order === "unsure" || this.order === "date" ? 1 : -1;
      const isByDate = this.order === "date" || this.order === "late";
      const values = isByDate ? this.dates?.map((date) => (Number.isNaN(date) ? sign * Infinity : date)) : sure; // without a date comes last
      if (values) rows.sort((a, b) => sign * (values[a] - values[b]) || a - b);
    }
    const again = (index: number) => {
      const at = rows.indexOf(this.shown[index]);
      return at < 0 ? Math.min(index, Math.max(0, rows.length - 1)) : at;
    };
    [this.focus, this.anchor] = [again(this.focus), again(this.anchor)];
    this.shown = rows;
    if (this.selected.size) {
      const there = new Set(rows);
      this.selected = new Set([...this.selected].filter((row) => there.has(row)));
    }
    if (this.place === "desk") this.sorting ??= this.openAfter(-1);
    this.changed();
  }

  /** What has left its place stays where it was for a moment, so that nothing moves under the pointer. */
  private settle(): void {
    clearTimeout(this.settling);
    this.settling = window.setTimeout(() => this.show(), STAYS_MS);
  }

  resize(factor: number): void {
    this.side = Math.min(320, Math.max(SMALLEST, Math.round(this.side * factor)));
    this.changed();
  }

  // Selection

  /** Selects one, or from the last one on to this one. */
  select(row: number, range = false): void {
    const index = this.shown.indexOf(row);
    if (index < 0) return;
    if (range) {
      const [from, to] = [Math.min(this.anchor, index), Math.max(this.anchor, index)];
      for (const each of this.shown.slice(from, to + 1)) this.selected.add(each);
    } else {
      if (!this.selected.delete(row)) this.selected.add(row);
      this.anchor = index;
    }
    this.focus = index;
    this.changed();
  }

  selectAll(): void {
    this.selected = new Set(this.shown.filter((row) => !this.isGone(row)));
    this.say("selected", { n: this.selected.size });
  }

  choose(id: number): void {
    if (!this.chosen.delete(id)) this.chosen.add(id);
    this.say("selected", { n: this.chosen.size });
  }

  clear(): void {
    this.selected.clear();
    this.chosen.clear();
    this.changed();
  }

  /** Whether photographs stand beside each other. */
  get isGrid(): boolean {
    return !SCREENS.includes(this.place as Screen);
  }

  private openAfter(index: number): number | null {
    return this.shown.find((row, at) => at > index && this.isOpen(row) && row !== this.right?.row) ?? null;
  }

  /** Goes on to the least sure one, or to one that was drawn: those that a person or an order chose tell nothing of the others. */
  sortNext(): void {
    if (!this.isBlind && this.sorting !== null) this.reached = this.shown.indexOf(this.sorting);
    const drawn = this.right?.row ?? null;
    const isTurn = ++this.answers % BLIND_EACH === BLIND_EACH - 1;
    const next = this.openAfter(this.reached);
    this.isBlind = drawn !== null && this.isOpen(drawn) && !this.isBlind && (isTurn || next === null);
    this.sorting = this.isBlind ? drawn : next;
  }

  /** What an action is about: the photograph that is large, the selection, or the one that really has the focus. */
  get rows(): number[] {
    const top = this.top;
    if (top?.kind === "large") return [top.row];
    if (this.selected.size) return [...this.selected];
    const row = this.place === "desk" ? this.sorting : this.isGrid ? this.focused() : null;
    return row === null || row === undefined || (this.isGrid && this.isGone(row)) ? [] : [row];
  }

  // Layers

  get top(): Layer | undefined {
    return this.layers.at(-1);
  }

  open(layer: Layer): void {
    this.layers.push(layer);
    this.changed();
  }

  close(): void {
    const left = this.layers.pop();
    if (left?.kind !== "large") return this.changed();
    this.focus = this.shown.indexOf(left.row);
    this.refocus = this.isGone(left.row) ? "list" : "cell";
    this.show();
  }

  /** Makes another photograph large. */
  turn(step: number): void {
    if (this.top?.kind !== "large") return;
    const at = this.shown.indexOf(this.top.row) + step;
    this.top.row = this.shown[Math.min(this.shown.length - 1, Math.max(0, at))];
    this.changed();
  }

  // Corrections

  say(text: Words, values: Record<string, string | number> = {}): void {
    this.tell(t(text, values), SAID_MS);
  }

  private tell(text: string, lasts = REFUSED_MS): void {
    clearTimeout(this.fading);
    if (text) this.fading = window.setTimeout(() => this.tell(""), lasts);
    [this.status, this.saidAt] = [text, Date.now()];
    this.messages++;
    this.changed();
  }

  get lostText(): string {
    return this.over || this.lostWhy || t(this.isInside ? "lostInside" : "lost");
  }

  /** Says what could not be done. */
  fail(error: unknown): void {
    this.tell(error instanceof Refused ? error.message : this.lostText);
  }

  /** Makes a correction, shown at once, and says what it did, by default of how many and with which group; what is refused is taken back. One of photographs ends their selection. */
  async edit(edit: Edit, said?: Words, values: Record<string, string | number> = {}): Promise<boolean> {
    const { images: rows = [] } = edit;
    const named = this.groupName(edit.category ?? (typeof edit.to === "number" ? edit.to : null)); // before it is another one, or gone
    const isLong = edit.do === "regroup";
    const isOfRows = edit.images !== undefined;
    const selected = isOfRows && this.top?.kind !== "large" ? this.selected : new Set<number>(); // which one that is large is none of
    const blind = this.place === "desk" && this.isBlind && rows.length === 1 && rows[0] === this.sorting;
    const restore = this.expect(edit);
    const looked = isOfRows && !selected.size ? this.goOn(rows) : null;
    if (selected.size) this.selected = new Set();
    this.changed();
    const slow = isLong ? 0 : setTimeout(() => this.say("slow"), SLOW_MS);
    const taken = post<Answer>(isLong ? "regroup" : "edit", { ...edit, ...(blind ? { blind } : {}), generation: this.summary!.generation }).then((answer) => (restore(), this.take(answer)));
    this.editing = taken.catch(() => undefined);
    try {
      await taken;
    } catch (error) {
      restore();
      if (!this.selected.size) this.selected = selected;
      if (looked !== null) this.lookAgain(looked);
      this.fail(error);
      await get<Summary>("state").then((summary) => this.take(summary)).catch(() => undefined);
      this.show();
      return false;
    } finally {
      clearTimeout(slow);
    }
    this.edits++;
    if (looked !== null) this.left.push(looked);
    this.settle();
    if (said) this.say(said, { n: rows.length, name: named, ...values });
    return true;
  }

  /** Shows photographs as a correction will have made them; what is given back shows them as they were. */
  private expect(edit: Edit): () => void {
    const { group, flags } = this.columns;
    const { images: rows = [] } = edit;
    const before = rows.map((row) => [row, group[row], flags[row]]);
    for (const row of rows) {
      if (edit.do === "move") group[row] = (edit.to as number | null) ?? NOWHERE;
      if (edit.do === "gather") group[row] = COMING;
      if (edit.do === "set_images_aside") group[row] = ASIDE;
      flags[row] |= REVIEWED;
    }
    return () => before.forEach(([row, was, flagged]) => ([group[row], flags[row]] = [was, flagged]));
  }

  /** Goes on from the photograph that is looked at, where a correction has taken it out of its place: the next key is about another one. */
  private goOn(rows: number[]): number | null {
    const { top } = this;
    const row = top?.kind === "large" ? top.row : this.place === "desk" ? this.sorting : this.focused();
    if (row === null || row === undefined || !rows.includes(row) || !this.isGone(row)) return null;
    const at = this.shown.indexOf(row);
    if (this.place === "desk") this.sortNext();
    const next = [...this.shown.slice(at + 1), ...this.shown.slice(0, at).reverse()].find((each) => !this.isGone(each));
    if (top?.kind === "large") {
      if (next === undefined) this.close();
      else top.row = next;
    } else if (next !== undefined) {
      this.focus = this.shown.indexOf(next);
      this.refocus = "cell";
    }
    return row;
  }

  /** Goes back to a photograph that is in its place again. */
  private lookAgain(row: number): void {
    const at = this.shown.indexOf(row);
    if (this.place === "desk") [this.sorting, this.retaken, this.isBlind] = [row, row, false];
    if (this.top?.kind === "large" && at >= 0) this.top.row = row;
    else if (this.isGrid && !this.top && at >= 0) [this.focus, this.refocus] = [at, "cell"];
  }

  async move(rows: number[], group: number | null): Promise<void> {
    this.lastMove = group;
    await this.edit({ do: "move", images: rows, to: group }, group === null ? "movedOut" : "moved");
  }

  async gather(rows: number[], name?: string): Promise<void> {
    const before = new Set(this.byId.keys());
    if (!(await this.edit({ do: "gather", images: rows, ...(name ? { name } : {}) }))) return;
    const id = [...this.byId.keys()].find((each) => !before.has(each)) ?? null;
    this.lastMove = id;
    this.say("gathered", { n: rows.length, name: this.groupName(id) });
  }

  async confirm(rows: number[]): Promise<void> {
    const placed = rows.filter((row) => this.columns.group[row] !== NOWHERE);
    if (placed.length) await this.edit({ do: "confirm", images: placed }, "confirmed");
    else this.say("whyNone");
  }

  /** Gives a group a name; one that another group has asks whether the two are one. */
  async rename(id: number, typed: string): Promise<void> {
    const name = typed.trim();
    const same = this.sameName(name);
    if (!name || name === this.byId.get(id)?.name) return;
    if (same && same.id !== id) {
      this.naming = null;
      this.open({ kind: "merge", ids: [same.id, id] });
      return;
    }
    await this.edit({ do: "rename", category: id, name }, "renamed", { name });
  }

  /** Groups whose names hold what is typed: the one that is called so, then those that are near, then the larger. */
  called(typed: string, near: number[] = []): Group[] {
    const words = typed.trim().toLocaleLowerCase();
    const exact = this.sameName(typed);
    const far = (each: Group) => (each === exact ? -1 : near.includes(each.id) ? near.indexOf(each.id) : 1000 - each.size / 1e6);
    return this.summary!.groups.filter((each) => each.name.toLocaleLowerCase().includes(words)).sort((a, b) => far(a) - far(b));
  }

  sameName(name: string): Group | undefined {
    const folded = name.trim().toLocaleLowerCase();
    return this.summary!.groups.find((each) => each.name.toLocaleLowerCase() === folded);
  }

  /** The group after this one that nobody has named. */
  nextUnnamed(id: number): number | null {
    const listed = this.groups;
    const from = listed.findIndex((each) => each.id === id);
    const later = [...listed.slice(from + 1), ...listed.slice(0, from + 1)].find((each) => !each.named && each.id !== id);
    return later?.id ?? null;
  }

  /** Makes groups one; without a name it has none. */
  async merge(ids: number[], name: string | null): Promise<void> {
    if (!(await this.edit({ do: "merge", categories: ids, name }))) return;
    this.chosen.clear();
    const kept = ids.find((id) => this.byId.has(id));
    this.say("merged", { n: ids.length, name: this.groupName(kept ?? null) });
    if (this.place === "group" && kept !== undefined && kept !== this.group) this.go("group", kept);
  }

  /** Makes fewer or more groups; what was named or corrected stays. */
  async regroup(count: number): Promise<void> {
    if (!(await this.edit({ do: "regroup", count }))) return;
    this.say("regrouped", { n: this.summary!.groups.length });
    this.show();
  }

  async back(forward = false): Promise<void> {
    await this.editing; // whoever takes back what was just done means that
    const step = forward ? this.summary!.redo : this.summary!.undo;
    if (!step) return;
    const said = forward ? "redone" : "undone";
    if (!(await this.edit({ do: forward ? "redo" : "undo", number: step.number }, said, { cause: this.cause(step) }))) return;
    this.show();
    const row = this.left.at(-1);
    if (forward || row === undefined || this.isGone(row)) return;
    this.left.pop();
    this.lookAgain(row);
    this.changed();
  }

  cause(step: Step): string {
    return t(`did.${step.kind}` as Words, { n: step.count, name: step.name ?? "" });
  }
}
