/** What lies above the page for a moment: one photograph large, where to move, what to merge, the keys. */
import { ComponentType } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { About, address, Exported, Group, post, Why } from "./api";
import { Desk, Layer } from "./desk";
import { Cover, Offer } from "./groups";
import { Photo, Sheet, useAnswer } from "./sheet";
import { DissolveSheet, FileSheet, NewSheet, RegroupSheet } from "./sheets";
import { percent, t, Words } from "./texts";

export function Top({ desk }: { desk: Desk }) {
  const { top } = desk;
  if (!top) return null;
  const all = { large: Large, move: MoveSheet, dissolve: DissolveSheet, file: FileSheet, merge: MergeSheet, take: TakeSheet, regroup: RegroupSheet, new: NewSheet, keys: HelpSheet };
  const Shown = all[top.kind] as ComponentType<{ desk: Desk } & Layer>;
  return <Shown key={`${desk.layers.length} ${top.kind}`} desk={desk} {...top} />;
}

/** The keys, and what found the groups. */
function HelpSheet({ desk }: { desk: Desk }) {
  const about = useAnswer<About>("about");
  return (
    <Sheet desk={desk} name="sheet help" label={t("help")} title={t("keys")}>
      <ul class="keys">
        {t("keyList").split(" · ").map((line) => <li key={line}><kbd>{line.split(": ")[0]}</kbd> {line.split(": ")[1]}</li>)}
      </ul>
      {about && (
        <section class="about">
          <h2>{t("about")}</h2>
          {about.model && <p>{t(about.method ? "foundWithMethod" : "foundWith", { model: about.model, method: about.method })}</p>}
          {about.estimate && <p>{t(about.estimate[1] < about.estimate[2] ? "estimate" : "estimateSure", { count: about.estimate[0], low: about.estimate[1], high: about.estimate[2] })}</p>}
          {about.place && <p>{t("keptIn", { place: about.place })}</p>}
          {about.card && <p><a href={about.card} target="_blank" rel="noopener noreferrer">{t("card")}</a></p>}
        </section>
      )}
    </Sheet>
  );
}

const SCROLLS: Record<string, [number, number]> = { ArrowLeft: [-120, 0], ArrowRight: [120, 0], ArrowUp: [0, -120], ArrowDown: [0, 120] };
const SOUND = /\.(wav|mp3|ogg|flac)$/i;

function Large({ desk, row, why }: { desk: Desk; row: number; why: boolean }) {
  const index = desk.shown.indexOf(row);
  const touched = useRef(0);
  const box = useRef<HTMLDivElement>(null);
  const [near, setNear] = useState(-1); // the photograph that is shown by its own pixels, which scroll
  const isNear = near === row;
  const toPixels = () => setNear(isNear ? -1 : row);
  const onKeyDown = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, Home: -index, End: desk.shown.length };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.toLowerCase() === "z") toPixels();
    else if (isNear && event.key in SCROLLS) box.current!.scrollBy(...SCROLLS[event.key]);
    else if (event.key in steps) desk.turn(steps[event.key]);
    else if (event.key === " ") desk.select(row);
    else return;
    event.preventDefault();
  };
  return (
    <Sheet desk={desk} name="large" label={desk.label(row)} title="">
      <div class="stage" onKeyDown={onKeyDown} tabIndex={-1} autofocus
        onTouchStart={(event) => (touched.current = event.touches[0].clientX)}
        onTouchEnd={(event) => {
          const moved = event.changedTouches[0].clientX - touched.current;
          if (Math.abs(moved) > 50 && !isNear) desk.turn(moved < 0 ? 1 : -1);
        }}
      >
        <div class={`zoom${isNear ? " pixels" : ""}`} ref={box} onDblClick={toPixels}>
          <Photo desk={desk} row={row} isNear={isNear} />
        </div>
        <button class="step before" aria-label={t("before")} disabled={index === 0} onClick={() => desk.turn(-1)}>‹</button>
        <button class="step after" aria-label={t("after")} disabled={index === desk.shown.length - 1} onClick={() => desk.turn(1)}>›</button>
        <div class="caption">
          {SOUND.test(desk.name(row)) && desk.summary!.can_write && (
            <audio key={row} controls preload="none" aria-label={desk.name(row)} src={address(`original/${desk.summary!.generation}/${row}`)} onKeyDown={(event) => event.key !== "Escape" && event.stopPropagation()} />
          )}
          <span class="row what"><span class="file" dir="auto">{desk.name(row)}</span> <span dir="auto">{desk.groupName(desk.columns.group[row])}</span> <small>{index + 1} / {desk.shown.length}</small></span>
          <Actions desk={desk} />
          <button title="Z" onClick={toPixels}>{t("pixels")}</button>
          {desk.summary!.can_write && <button title="F" onClick={() => desk.open({ kind: "file", row })}>{t("theFile")}</button>}
          <button class="shut" title="Esc" aria-label={t("close")} onClick={() => desk.close()}>✕</button>
        </div>
      </div>
      {why && <WhyHere desk={desk} row={row} />}
    </Sheet>
  );
}

/** What can be done with photographs: the key, what its button says, and what both do. */
export const ACTIONS: [string, Words, (desk: Desk, rows: number[]) => unknown][] = [
  ["m", "moveTo", (desk, rows) => desk.open({ kind: "move", rows })],
  ["g", "newGroup", (desk, rows) => desk.open({ kind: "new", rows })],
  ["b", "belongs", (desk, rows) => desk.confirm(rows)],
  ["x", "asideDo", (desk, rows) => desk.edit({ do: "set_images_aside", images: rows }, "setAside")],
  ["Delete", "takeOut", (desk, rows) => desk.move(rows, null)],
  ["w", "why", (desk) => showWhy(desk)],
  ["l", "alikeDo", (desk, rows) => desk.go("alike", rows.join())],
];

/** The buttons for the selection, or for the photograph that is large. */
export function Actions({ desk }: { desk: Desk }) {
  const { rows } = desk;
  const due = ACTIONS.filter(([key]) => key !== "w" || rows.length === 1);
  return <>{due.map(([key, words, act]) => <button key={key} title={key === "Delete" ? "Del" : key.toUpperCase()} onClick={() => void act(desk, desk.rows)}>{t(words)}</button>)}</>;
}

function showWhy(desk: Desk): void {
  const top = desk.top;
  if (top?.kind === "large") top.why = !top.why;
  else if (desk.rows.length) desk.open({ kind: "large", row: desk.rows[0], why: true });
  desk.changed();
}

/** Why a photograph is where it is, in words and pictures, and where else it could be. */
function WhyHere({ desk, row }: { desk: Desk; row: number }) {
  const why = useWhy(desk, row);
  if (!why) return <aside class="why" aria-busy="true" />;
  const name = desk.groupName(why.group);
  const text = why.group === null ? t("whyNone")
    : why.state !== "found" ? t(why.state === "reviewed" ? "whySet" : "whyPinned", { name })
    : why.sure === null ? t("whyGroup", { name })
    : t(why.measured ? "whySure" : "whyLikeness", { name, sure: percent(why.sure) }); // prettier-ignore
  return (
    <aside class="why">
      <p>{text}</p>
      {why.like.length > 0 && <p>{t("whyLike")}</p>}
      <span class="row">
        {why.like.map((each) => <img key={each} src={desk.picture(each, 128)} alt={desk.name(each)} />)}
      </span>
      <p>{t("whyOthers")}</p>
      {why.others.filter((each) => each.id !== why.group).slice(0, 4).map(({ id, like }) => {
        const group = desk.byId.get(id);
        return group && (
          <Offer key={id} desk={desk} group={group} note={t("likeness", { like: like.toFixed(2) })} onClick={() => void desk.move([row], id)} />
        );
      })}
    </aside>
  );
}

/** Asked anew after a correction in this window alone: what is offered does not change between a look and a key. */
export const useWhy = (desk: Desk, row: number) => useAnswer<Why>(`why/${row}`, desk.edits);

/** Where photographs go: a group that is typed or pointed at, likest first, or a new one. */
function MoveSheet({ desk, rows }: { desk: Desk; rows: number[] }) {
  const [typed, setTyped] = useState("");
  const [at, setAt] = useState(0);
  const list = useRef<HTMLDivElement>(null);
  const words = typed.trim();
  const exact = desk.sameName(typed);
  const offered = desk.called(typed, desk.byId.get(desk.columns.group[rows[0]])?.near).filter((each) => desk.place !== "group" || each.id !== desk.group);
  const take = (id: number | null) => {
    desk.close();
    void (id === null ? desk.gather(rows, words) : desk.move(rows, id));
  };
  const option = (index: number) =>
    ({ id: `target-${index}`, role: "option", tabIndex: -1, "aria-selected": index === at, class: `offer${index === at ? " here" : ""}` }) as const;
  const chosen = offered[at]?.id ?? null;
  const last = offered.length - (words && !exact ? 0 : 1);
  useEffect(() => list.current!.children[at]?.scrollIntoView({ block: "nearest" }), [at]);
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.isComposing) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      setAt(Math.min(last, Math.max(0, at + (event.key === "ArrowDown" ? 1 : -1))));
      event.preventDefault();
    }
    if (event.key === "Enter" && (chosen !== null || words)) take(chosen);
  };
  return (
    <Sheet desk={desk} name="sheet" label={t("moveTitle", { n: rows.length })}>
      <input autofocus value={typed} dir="auto" maxLength={100} placeholder={t("typeGroup")} aria-label={t("typeGroup")}
        role="combobox" aria-expanded="true" aria-autocomplete="list" aria-controls="targets" aria-activedescendant={at <= last ? `target-${at}` : undefined} onInput={(event) => (setTyped(event.currentTarget.value), setAt(0))} onKeyDown={onKeyDown} />
      <div class="targets" id="targets" role="listbox" aria-label={t("groups")} ref={list}>
        {offered.map((group, index) => <Offer key={group.id} desk={desk} group={group} note={group.size} {...option(index)} onClick={() => take(group.id)} />)}
        {words && !exact && (
          <button {...option(offered.length)} onClick={() => take(null)}>
            {t("newNamed", { name: words })}
          </button>
        )}
      </div>
    </Sheet>
  );
}

/** What can be taken away, and what was written. */
function TakeSheet({ desk }: { desk: Desk }) {
  const [kind, setKind] = useState("");
  const [found, setFound] = useState<Exported | null>(null);
  const isWriting = kind !== "" && !found;
  const begin = (name: string) => {
    setKind(name);
    setFound(null);
    void post<Exported>("export", { kind: name }).then(setFound, (error) => (setKind(""), desk.fail(error)));
  };
  return (
    <Sheet desk={desk} name="sheet take" label={t("takeAway")}>
      {desk.summary!.formats.map(({ name, title }) => <button key={name} disabled={isWriting} onClick={() => begin(name)}>{title[0].toUpperCase() + title.slice(1)}</button>)}
      {isWriting && <progress aria-label={t("takeProgress")} />}
      {found && (
        <div role="status" aria-label={t("takeProgress")}>
          <p dir="auto">
            <b>{t("exported", { n: found.photographs, place: found.place })}</b>{" "}
            <button class="primary" onClick={() => void post("show_in_folder", { export: kind }).catch((error: Error) => desk.fail(error))}>{t("openFolder")}</button>
          </p>
          {found.lines.slice(1).map((line) => <p key={line} dir="auto">{line}</p>)}
        </div>
      )}
    </Sheet>
  );
}

/** Groups side by side, and the name that they get: by default the one that a person gave, the known, the larger. */
function MergeSheet({ desk, ids }: { desk: Desk; ids: number[] }) {
  const groups = ids.flatMap((id) => desk.byId.get(id) ?? []);
  const rank = (group: Group) => [group.named, group.origin === "known", group.size].map(Number);
  const best = [...groups].sort((a, b) => rank(b)[0] - rank(a)[0] || rank(b)[1] - rank(a)[1] || b.size - a.size)[0];
  const [name, setName] = useState(best?.name ?? "");
  const size = groups.reduce((sum, group) => sum + group.size, 0);
  const merge = () => {
    desk.close();
    void desk.merge(groups.map((group) => group.id), groups.some((group) => !group.named && group.name === name) ? null : name);
  };
  const listed = groups.some((group) => group.name === name);
  return (
    <Sheet desk={desk} name="sheet wide" label={t("mergeTitle", { n: groups.length })} act={<button class="primary" autofocus disabled={groups.length < 2 || !name.trim()} onClick={merge}>{t("mergeDo", { n: size })}</button>}>
      <fieldset class="sides">
        <legend>{t("mergeName")}</legend>
        {groups.map((group) => (
          <label key={group.id} class={`side${group.name === name ? " here" : ""}`}>
            <Cover desk={desk} group={group} />
            <span>
              <input type="radio" name="survivor" disabled={best.named && !group.named} checked={group.name === name} onChange={() => setName(group.name)} /> <b dir="auto">{group.name}</b>{" "}
              <small>{group.size}</small>
            </span>
          </label>
        ))}
      </fieldset>
      <input class="wide" value={listed ? "" : name} dir="auto" maxLength={100} placeholder={t("otherName")} aria-label={t("otherName")} onInput={(event) => setName(event.currentTarget.value || best.name)} />
    </Sheet>
  );
}
