/** The page: what stands above and below, what is shown between, and the keys. */
import { ComponentType } from "preact";
import { home, NOWHERE } from "./api";
import { goToArea } from "./areas";
import { Check } from "./check";
import { Changed } from "./changed";
import { Desk, Order, Place, Screen } from "./desk";
import { Grid } from "./grid";
import { Choice, Cover, GroupList, Groups, Menu, Name, Offer } from "./groups";
import { ACTIONS, Actions, Top } from "./layers";
import { PhotoMap } from "./map";
import { Quick, Same } from "./quick";
import { useAnswer } from "./sheet";
import { t, Words } from "./texts";

const SHOWN: Record<Screen, ComponentType<{ desk: Desk }>> = { groups: Groups, desk: Quick, check: Check, same: Same, map: PhotoMap, changed: Changed };

export function App({ desk }: { desk: Desk }) {
  if (!desk.summary || desk.over) return <p class="empty">{desk.lost ? desk.lostText : t("loading")}</p>;
  const Main = desk.isInside ? "div" : "main"; // of which a page has one
  const Shown = desk.isGrid ? null : SHOWN[desk.place as Screen];
  return (
    <>
      <Bar desk={desk} />
      <Main class={`main${Shown ? "" : " beside"}`}>
        {!Shown && <GroupList desk={desk} />}
        {Shown ? <Shown key={desk.group} desk={desk} /> : (
          <section class="photos">
            <Head desk={desk} />
            <Grid desk={desk} />
          </section>
        )}
        <Selection desk={desk} />
      </Main>
      <p class={`status${desk.lost ? " lost" : ""}`} role="status" aria-label={t("status")}>
        {desk.lost ? desk.lostText : desk.top ? "" : desk.status}
      </p>
      <Top desk={desk} />
    </>
  );
}

function Bar({ desk }: { desk: Desk }) {
  const { title, photos, undo, redo, can_write } = desk.summary!;
  const Header = desk.isInside ? "div" : "header";
  const Title = desk.isInside ? "h2" : "h1";
  return (
    <Header class={`bar${desk.place === "groups" ? "" : " inside"}`} data-area="bar">
      <button class="skip" onClick={(event) => goToArea(event.currentTarget.getRootNode() as ShadowRoot, "main")}>{t("skipTo")}</button>
      {desk.place !== "groups" && <button class="back" onClick={() => desk.go("groups")}>‹ {t("groups")}</button>}
      <Title class="title" dir="auto">
        <a href="#view=groups">{title}</a> <small>{t("photos", { n: photos })}</small>
      </Title>
      <input
        type="search"
        class="search"
        value={desk.words}
        placeholder={`⌕ ${t("search")}`}
        aria-label={t("search")}
        onInput={(event) => {
          desk.words = event.currentTarget.value;
          desk.changed();
        }}
        onKeyDown={(event) => {
          if (event.key !== "F6") event.stopPropagation();
          if (event.key === "Enter" && desk.words.trim()) search(desk);
          if (event.key === "Escape") event.currentTarget.blur();
        }}
      />
      <button disabled={!undo} title={undo ? desk.cause(undo) : ""} onClick={() => void desk.back()}><i aria-hidden="true">↶</i> {t("undo")}</button>
      <button disabled={!redo} title={redo ? desk.cause(redo) : ""} onClick={() => void desk.back(true)}><i aria-hidden="true">↷</i> {t("redo")}</button>
      {can_write && <button class="wide" onClick={() => desk.open({ kind: "take" })}><i aria-hidden="true">⤓</i> {t("takeAway")}</button>}
      <button class="help" aria-label={t("help")} title={`${t("help")} (?)`} onClick={() => desk.open({ kind: "keys" })}>?</button>
      {desk.isInside && window === top && <a class="button wide" href={home()} target="_blank" rel="noopener">{t("ownWindow")}</a>}
    </Header>
  );
}

/** Opens the only group that is called so, or else looks for files. */
function search(desk: Desk): void {
  const [only, other] = desk.groups;
  const words = desk.words.trim();
  desk.words = "";
  if (only && !other) desk.go("group", only.id);
  else desk.go("found", words);
}

const ORDERS: [Order, Words][] = [["typical", "typical"], ["unsure", "unsureFirst"], ["file", "file"], ["date", "oldestFirst"], ["late", "newestFirst"]]; // prettier-ignore

const HOW: Partial<Record<Place, Words>> = { aside: "asideHow", away: "awayHow" };

/** What stands above the grid: which photographs these are, and what can be done with all of them. */
function Head({ desk }: { desk: Desk }) {
  const group = desk.place === "group" ? desk.byId.get(desk.group) : undefined;
  const of = new URLSearchParams(location.hash.slice(1)).get("of") ?? "";
  const title = group ? <Name desk={desk} group={group} />
    : desk.place === "group" ? "" // it has just gone
    : desk.place === "found" ? t("found", { words: of })
    : t(`${desk.place}Photos` as Words); // prettier-ignore
  return (
    <div class="head">
      <div class="row" data-area="tools">
        <h2>{title}</h2>
        <small>{t("photos", { n: group ? group.size : desk.shown.length })}</small>
        {group && desk.hasKnown && <small class={`origin ${group.origin}`}>{t(group.origin)}</small>}
        <span class="space" />
        {group && group.size > 1 && <button onClick={() => split(desk, group.id)}>{t("splitDo")}</button>}
        {desk.place === "away" && desk.shown.length > 0 && <button onClick={() => void desk.edit({ do: "forget" }, "forgotten", { n: desk.counts.away })}>{t("forgetDo")}</button>}
        <button disabled={!desk.shown.length} onClick={() => desk.selectAll()} title="Ctrl A">{t("selectAll")}</button>
        {group && group.origin !== "known" && (
          <Menu>
            <button onClick={() => desk.open({ kind: "dissolve", id: group.id })}>{t("dissolveDo")}</button>
            <button onClick={() => void desk.edit({ do: "set_aside", category: group.id }, "setGroupAside")}>{t("asideDo")}</button>
          </Menu>
        )}
        {group && group.near.length > 0 && (
          <span class="row near">
            <small>{t("resembles")}</small>
            {group.near.slice(0, 4).map((id) => {
              const other = desk.byId.get(id);
              return other && <Offer key={id} desk={desk} group={other} title={t("merge")} onClick={() => desk.open({ kind: "merge", ids: [group.id, id] })} />;
            })}
          </span>
        )}
        {!desk.isRanked && <Choice label={t("sortBy")} value={desk.order} values={ORDERS.filter(([each]) => desk.summary!.can_write || !["date", "late"].includes(each))} take={(each) => ((desk.order = each), desk.show())} />}
        <span class="sizes">
          <button aria-label={t("smaller")} onClick={() => desk.resize(1 / 1.3)}>−</button>
          <button aria-label={t("larger")} onClick={() => desk.resize(1.3)}>+</button>
        </span>
      </div>
      {group && <Halves key={group.id} desk={desk} id={group.id} />}
      {HOW[desk.place] && <p class="none">{t(HOW[desk.place]!)}</p>}
    </div>
  );
}

const split = (desk: Desk, id: number) => void desk.edit({ do: "split", category: id }, "split");

/** A group that looks like two: what Split would make of it. */
function Halves({ desk, id }: { desk: Desk; id: number }) {
  const parts = useAnswer<number[][]>(`halves/${id}`, desk.edits);
  if (!parts?.length) return null;
  return (
    <p class="row halves">
      {t("halves")}
      {parts.map((rows) => <Cover key={rows[0]} desk={desk} group={{ cover: rows }} most={3} />)}
      <button class="primary" onClick={() => split(desk, id)}>{t("splitDo")}</button>
    </p>
  );
}

/** What is selected, and what can be done with it. */
function Selection({ desk }: { desk: Desk }) {
  const groups = desk.place === "groups" ? desk.chosen.size : 0;
  if (!groups && !desk.selected.size) return null;
  return (
    <div class="selection" role="toolbar" data-area="selection" aria-label={t("selected", { n: groups || desk.selected.size })}>
      <b>{t("selected", { n: groups || desk.selected.size })}</b>
      {groups ? (
        <button class="primary" disabled={groups < 2} title="M" onClick={() => mergeChosen(desk)}>{t("mergeMany", { n: groups })}</button>
      ) : (
        <Actions desk={desk} />
      )}
      <button title="Esc" aria-label={t("clear")} onClick={() => desk.clear()}>✕</button>
    </div>
  );
}

function mergeChosen(desk: Desk): void {
  if (desk.chosen.size > 1) desk.open({ kind: "merge", ids: [...desk.chosen] });
}

/** Keys that hold everywhere but in a text field; the layer on top takes them. */
export function onKey(desk: Desk, event: KeyboardEvent, root: ShadowRoot): void {
  if (event.isComposing || !desk.summary) return;
  if (event.key === "F6" && !desk.top) return event.preventDefault(), goToArea(root, event.shiftKey ? -1 : 1);
  if (isTyping(root)) return;
  const rows = desk.rows;
  const sheet = desk.top && desk.top.kind !== "large";
  const plain = !event.ctrlKey && !event.metaKey && !event.altKey;
  const pressed = event.key.length > 1 ? event.key : event.key.toLowerCase(); // Caps Lock changes no key
  const key = `${plain ? "" : "ctrl "}${event.shiftKey && /^[lz]$/.test(pressed) ? "shift " : ""}${pressed}`;
  const always: Record<string, () => void> = {
    "ctrl z": () => void desk.back(),
    "ctrl shift z": () => void desk.back(true),
    "ctrl y": () => void desk.back(true),
  };
  const onPhotos: Record<string, () => void> = {
    "ctrl a": () => desk.selectAll(),
    ...Object.fromEntries(ACTIONS.map(([each, , act]) => [each, () => void act(desk, rows)])),
    "shift l": () => desk.go("alike", rows.join(), desk.columns.group[rows[0]] < 0 ? {} : { in: String(desk.columns.group[rows[0]]) }),
    ".": () => desk.lastMove !== null && void desk.move(rows, desk.lastMove),
    ...(desk.summary.can_write && { f: () => desk.open({ kind: "file", row: rows[0] }) }),
  };
  const anywhere: Record<string, () => void> = {
    "?": () => desk.open({ kind: "keys" }),
    "/": () => root.querySelector<HTMLElement>(".search")?.focus(),
    r: () => nameOne(desk, root),
    m: () => desk.place === "groups" && mergeChosen(desk),
    "[": () => step(desk, -1),
    "]": () => step(desk, 1),
    Escape: () => leave(desk),
  };
  const chooseFirst = () => desk.say("chooseFirst");
  const ofPhotos = rows.length || (key === "ctrl a" && desk.isGrid) ? onPhotos[key] : key.startsWith("ctrl") || desk.place === "groups" || !onPhotos[key] ? undefined : chooseFirst;
  const act = sheet ? undefined : (always[key] ?? ofPhotos ?? (desk.top ? undefined : anywhere[key]));
  if (!act) return;
  event.preventDefault();
  act();
}

const isTyping = ({ activeElement }: ShadowRoot) => activeElement instanceof HTMLSelectElement || (activeElement instanceof HTMLInputElement && ["text", "search"].includes(activeElement.type));

/** Lets the group that is shown be named, or the card that has the focus, or the first without a name. */
function nameOne(desk: Desk, root: ShadowRoot): void {
  const card = root.activeElement?.closest("li")?.querySelector<HTMLElement>("[data-group]")?.dataset.group;
  desk.naming = desk.place === "group" ? desk.group : card ? Number(card) : desk.nextUnnamed(NOWHERE);
  desk.changed();
}

function step(desk: Desk, by: number): void {
  const ids = desk.groups.map((group) => group.id);
  const next = ids[ids.indexOf(desk.group) + by];
  if (desk.place === "group" && next !== undefined) desk.go("group", next);
}

function leave(desk: Desk): void {
  if (desk.selected.size || desk.chosen.size) desk.clear();
  else if (desk.place !== "groups") desk.go("groups");
}
