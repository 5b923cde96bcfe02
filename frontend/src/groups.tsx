/** Groups: cards to scan, the list beside the photographs, and a name that is typed in place. */
import { ComponentChildren, ComponentProps } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Group, NOWHERE } from "./api";
import { arriveAt, onArrow } from "./areas";
import { Desk, Filter, GroupOrder } from "./desk";
import { RightLine } from "./right";
import { t, Words } from "./texts";

/** Lets photographs, or other groups, be dropped on a group, and a group be dragged. */
function drags(desk: Desk, id: number | null) {
  return {
    draggable: id !== null,
    onDragStart: (event: DragEvent) => event.dataTransfer!.setData("application/x-promptccd", String(id)),
    onDragOver: (event: DragEvent) => {
      if (event.dataTransfer!.types.includes("application/x-promptccd")) event.preventDefault();
    },
    onDrop: (event: DragEvent) => {
      event.preventDefault();
      const dropped = event.dataTransfer!.getData("application/x-promptccd");
      if (dropped === "photos") void desk.move([...desk.selected], id);
      else if (id !== null && Number(dropped) !== id) desk.open({ kind: "merge", ids: [id, Number(dropped)] });
    },
  };
}

/** A few pictures of a group. */
export function Cover({ desk, group, most = 4 }: { desk: Desk; group: Pick<Group, "cover">; most?: number }) {
  const rows = group.cover.slice(0, most);
  return (
    <span class={`cover n${rows.length}`} aria-hidden="true">
      {rows.map((row, place) => <img key={row} src={desk.picture(row, most > 1 && place === 0 ? 320 : 128)} alt="" loading="lazy" decoding="async" draggable={false} />)}
    </span>
  );
}

interface OfferProps extends ComponentProps<"button"> {
  desk: Desk;
  group: Group;
  most?: number; // pictures
  number?: number; // its key
  note?: ComponentChildren;
  class?: string;
}

/** A group that can be chosen: its pictures, its name, and what is said of it. */
export function Offer({ desk, group, most = 1, number, note, class: look = "offer", ...button }: OfferProps) {
  return (
    <button class={look} {...button}>
      {number !== undefined && <kbd>{number}</kbd>}
      <Cover desk={desk} group={group} most={most} />
      <span class={group.named ? "" : "none"} dir="auto">{group.name}</span>
      {note !== undefined && <small>{note}</small>}
    </button>
  );
}

/** The name of a group; a click, or R, lets it be typed. Enter goes on to the next group without one. */
export function Name({ desk, group, tabIndex }: { desk: Desk; group: Group; tabIndex?: number }) {
  if (desk.naming === group.id) return <NameField key={group.id} desk={desk} group={group} />;
  return (
    <button class={`name${group.named ? "" : " none"}`} title={`${t("rename")} (R)`} dir="auto" tabIndex={tabIndex} onClick={() => ((desk.naming = group.id), desk.changed())}>
      {group.name}{!group.named && ` · ${t("nameIt")}`}
    </button>
  );
}

function NameField({ desk, group }: { desk: Desk; group: Group }) {
  const field = useRef<HTMLInputElement>(null);
  const [typed, setTyped] = useState(group.named ? group.name : "");
  useLayoutEffect(() => {
    field.current!.focus(); // at once: the next key is the first letter
    field.current!.select();
  }, []);
  const leave = () => {
    if (desk.naming === group.id) desk.naming = null;
    desk.refocus ??= "list";
    desk.changed();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    event.stopPropagation();
    if (event.isComposing) return;
    if (event.key === "Escape") leave();
    if (event.key === "Enter" || event.key === "Tab") {
      event.preventDefault();
      const next = desk.place === "groups" ? desk.nextUnnamed(group.id) : null;
      desk.naming = next;
      desk.card = next ?? group.id;
      desk.refocus = "list";
      if (event.key === "Enter") void desk.rename(group.id, typed);
      desk.changed();
    }
  };
  const offered = desk.called(typed, group.near).filter((each) => each.named && each.id !== group.id).slice(0, 4);
  return (
    <span class="naming">
      <input ref={field} value={typed} dir="auto" maxLength={100} placeholder={t("nameIt")} aria-label={t("nameOf")} onInput={(event) => setTyped(event.currentTarget.value)} onKeyDown={onKeyDown} onBlur={leave} />
      {offered.length > 0 && (
        <span class="offers">
          {offered.map((each) => <Offer key={each.id} desk={desk} group={each} note={each.size} onMouseDown={(event) => (event.preventDefault(), void desk.rename(group.id, each.name))} />)}
        </span>
      )}
    </span>
  );
}

const GROUP_ORDERS: [GroupOrder, Words][] = [["size", "size"], ["unsure", "unsureFirst"], ["name", "name"], ["id", "newestFirst"]]; // prettier-ignore
const FILTERS: [Filter, Words][] = [["any", "any"], ["unnamed", "unnamed"], ["new", "new"], ["known", "onlyKnown"]]; // prettier-ignore

/** A choice of one of a few, with its words beside it. */
export function Choice<T extends string>({ label, value, values, take }: { label: string; value: T; values: [T, Words][]; take: (value: T) => void }) {
  return (
    <label class="choice">
      <span>{label}</span>
      <select aria-label={label} value={value} onChange={(event) => take(event.currentTarget.value as T)}>
        {values.map(([each, words]) => <option key={each} value={each}>{t(words)}</option>)}
      </select>
    </label>
  );
}

/** What is done more rarely: it closes once something is chosen, or the focus leaves it. */
export function Menu({ children }: { children: ComponentChildren }) {
  const box = useRef<HTMLDetailsElement>(null);
  const close = () => box.current?.removeAttribute("open");
  return (
    <details class="menu" ref={box} onFocusOut={(event) => event.relatedTarget && !event.currentTarget.contains(event.relatedTarget as Node) && close()}>
      <summary class="button">{t("moreWays")}</summary>
      <div onClick={close}>{children}</div>
    </details>
  );
}

/** All groups as cards. */
export function Groups({ desk }: { desk: Desk }) {
  const groups = desk.groups;
  const stop = desk.stopOf(groups);
  const cards = useRef<HTMLUListElement>(null);
  useEffect(() => {
    if (desk.top || !desk.refocus) return;
    const { activeElement } = cards.current!.getRootNode() as ShadowRoot;
    const card = cards.current!.querySelector<HTMLElement>('.stop[tabindex="0"]');
    card?.scrollIntoView({ block: "nearest" });
    if (!activeElement || desk.refocus === "first") arriveAt(card);
    desk.refocus = null;
  });
  const onKey = (event: KeyboardEvent, id: number) => {
    if (event.key !== " ") return;
    event.preventDefault(); // it would open the group
    if (event.type === "keydown") desk.choose(id);
  };
  return (
    <div class="scroll overview">
      <div class="row tools" data-area="tools">
        <Next desk={desk} />
        <Menu>
          {desk.counts.open > 0 && <button onClick={() => desk.go("desk")}>{t("quick")}</button>}
          {desk.counts.open > 0 && <button onClick={() => desk.go("check")}>{t("check")}</button>}
          <button onClick={() => desk.go("map")}>{t("map")}</button>
          <button onClick={() => desk.open({ kind: "regroup" })}>{t("regroup")}</button>
          <Places desk={desk} />
        </Menu>
        <Choice label={t("sortBy")} value={desk.groupOrder} values={GROUP_ORDERS} take={(each) => ((desk.groupOrder = each), desk.changed())} />
        <Choice label={t("show")} value={desk.filter} values={desk.hasKnown ? FILTERS : FILTERS.slice(0, 2)} take={(each) => ((desk.filter = each), desk.changed())} />
      </div>
      {desk.words && (
        <button class="link" onClick={() => desk.go("found", desk.words)}>
          {t("searchFiles", { n: groups.length, words: desk.words })}
        </button>
      )}
      {desk.counts.reviewed > 0 && <div class="said"><RightLine desk={desk} /></div>}
      <Alike desk={desk} />
      <ul class="cards" aria-label={t("groups")} data-area="main" ref={cards} onKeyDown={onArrow}>
        {groups.map((group) => (
          <li key={group.id} class={`card${desk.chosen.has(group.id) ? " picked" : ""}`} {...drags(desk, group.id)}>
            <button
              class="open stop"
              tabIndex={group.id === stop ? 0 : -1}
              onFocus={() => group.id !== stop && ((desk.card = group.id), desk.changed())}
              onKeyDown={(event) => onKey(event, group.id)}
              onKeyUp={(event) => onKey(event, group.id)}
              aria-label={`${group.name}, ${t("photos", { n: group.size })}`}
              data-group={group.id}
              onClick={(event) => (event.ctrlKey || event.metaKey ? desk.choose(group.id) : desk.go("group", group.id))}
            >
              <Cover desk={desk} group={group} />
            </button>
            <button class="box" role="checkbox" tabIndex={-1} aria-checked={desk.chosen.has(group.id)} aria-label={t("selectGroup", { name: group.name })} onClick={() => desk.choose(group.id)} />
            <Name desk={desk} group={group} tabIndex={-1} />
            <small class="facts">
              {t("photos", { n: group.size })}
              {desk.hasKnown && <> · <span class={`origin ${group.origin}`}>{t(group.origin)}</span></>}
              {group.unsure > 0 && <> · {t("countUnsure", { n: group.unsure })}</>}
            </small>
          </li>
        ))}
      </ul>
    </div>
  );
}

const REVIEWS = 20; // photographs, after which the range says something

/** The next step: names, some reviews, and then the export. */
function Next({ desk }: { desk: Desk }) {
  const unnamed = desk.summary!.groups.filter((each) => !each.named && each.size > 0).length;
  const name = () => ((desk.naming = desk.card = desk.nextUnnamed(NOWHERE) ?? NOWHERE), (desk.refocus = "list"), desk.changed());
  const left = Math.min(REVIEWS - desk.counts.reviewed, desk.counts.open);
  const [text, act] = unnamed ? [t("nextName", { n: unnamed }), name]
    : left > 0 || !desk.summary!.can_write ? [left > 0 ? t("nextReview", { n: left }) : t("check"), () => desk.go(left > 0 ? "desk" : "check")]
    : [t("takeAway"), () => desk.open({ kind: "take" })]; // prettier-ignore
  return <button class="primary next" onClick={act}>{text}</button>;
}

/** Pairs of groups that may be one; to name both tells them apart. */
function Alike({ desk }: { desk: Desk }) {
  const pairs = desk.summary!.alike.map((pair) => pair.flatMap((id) => desk.byId.get(id) ?? [])).filter((pair) => pair.length > 1);
  if (!pairs.length) return null;
  return (
    <div class="row alike" title={t("alikeHow")}>
      <small>{t("alikeGroups")}</small>
      {pairs.map(([one, other]) => (
        <button key={`${one.id} ${other.id}`} class="offer" onClick={() => desk.open({ kind: "merge", ids: [one.id, other.id] })}>
          <Cover desk={desk} group={one} most={1} />
          <Cover desk={desk} group={other} most={1} />
          <span dir="auto">{one.name} · {other.name}</span>
        </button>
      ))}
    </div>
  );
}

const COUNTED = ["unsure", "new", "none", "all", "aside", "away"] as const;

/** What is no group and can be looked at as one. */
function Places({ desk }: { desk: Desk }) {
  return (
    <>
      {desk.hasKnown && <button class="place" onClick={() => desk.go("changed")}>{t("changed")}</button>}
      {COUNTED.map((place) => {
        const n = desk.counts[place];
        if (!n || (place === "new" && !desk.summary!.stage)) return null;
        return (
          <button key={place} class={`place${desk.place === place ? " here" : ""}`} onClick={() => desk.go(place)} {...(place === "none" && drags(desk, null))}>
            {t(`${place}Photos`)} <small>{n}</small>
          </button>
        );
      })}
    </>
  );
}

/** The groups beside the photographs of one; on a phone a strip above them. */
export function GroupList({ desk }: { desk: Desk }) {
  const here = useRef<HTMLLIElement>(null);
  const stop = desk.stopOf(desk.groups);
  useEffect(() => here.current?.scrollIntoView({ block: "nearest", inline: "center" }), [desk.group, desk.place]);
  return (
    <nav class="list" aria-label={t("groups")} data-area="list">
      <div class="places">
        <Places desk={desk} />
      </div>
      <ul onKeyDown={onArrow}>
        {desk.groups.map((group) => {
          const isHere = desk.place === "group" && desk.group === group.id;
          return (
            <li key={group.id} ref={isHere ? here : undefined} {...drags(desk, group.id)}>
              <Offer desk={desk} group={group} note={group.size} class={isHere ? "here stop" : "stop"} tabIndex={group.id === stop ? 0 : -1} onFocus={() => group.id !== stop && ((desk.card = group.id), desk.changed())} aria-current={isHere} onClick={() => desk.go("group", group.id)} />
            </li>
          );
        })}
      </ul>
    </nav>
  );
}
