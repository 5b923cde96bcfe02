/** What is asked before all of a group, or all groups, change. */
import { useState } from "preact/hooks";
import { About, address, Facts, post } from "./api";
import { Desk } from "./desk";
import { Sheet, useAnswer } from "./sheet";
import { t } from "./texts";

/** A group that is none: where its photographs go. */
export function DissolveSheet({ desk, id }: { desk: Desk; id: number }) {
  const group = desk.byId.get(id);
  const take = (act: () => unknown) => (desk.close(), void act());
  return (
    <Sheet desk={desk} name="sheet" label={t("dissolveTitle", { name: group?.name ?? "", n: group?.size ?? 0 })}>
      <button autofocus onClick={() => take(() => desk.edit({ do: "dissolve", category: id, to_nearest: true }, "dissolved"))}>{t("toNearest")}</button>
      <button onClick={() => take(() => desk.edit({ do: "dissolve", category: id, to_nearest: false }, "dissolvedToNone"))}>{t("toNone")}</button>
      <button onClick={() => take(() => desk.edit({ do: "set_aside", category: id }, "setGroupAside"))}>{t("toAside")}</button>
    </Sheet>
  );
}

/** The name of a new group; without one it has a number. */
export function NewSheet({ desk, rows }: { desk: Desk; rows: number[] }) {
  const [name, setName] = useState("");
  const make = () => (desk.close(), void desk.gather(rows, name.trim()));
  return (
    <Sheet desk={desk} name="sheet" label={t("newTitle", { n: rows.length })} act={<button class="primary" onClick={make}>{t("newGroup")}</button>}>
      <input autofocus value={name} dir="auto" maxLength={100} placeholder={t("nameOf")} aria-label={t("nameOf")} onInput={(event) => setName(event.currentTarget.value)} onKeyDown={(event) => event.key === "Enter" && !event.isComposing && make()} />
    </Sheet>
  );
}

/** Fewer or more groups, over the range that would be about as good. */
export function RegroupSheet({ desk }: { desk: Desk }) {
  const about = useAnswer<About>("about");
  const now = desk.summary!.groups.length;
  const [count, setCount] = useState(now);
  const [isBusy, setBusy] = useState(false);
  const [seemed, low, high] = about?.estimate ?? [now, now, now];
  const regroup = async () => {
    setBusy(true);
    await desk.regroup(count);
    setBusy(false);
  };
  return (
    <Sheet desk={desk} name="sheet" label={t("regroup")} act={<button class="primary" disabled={isBusy || count === now} onClick={() => void regroup()}>{t("regroupDo", { n: count })}</button>}>
      <p>{about?.estimate && t(low < high ? "estimate" : "estimateSure", { count: seemed, low, high })} {t("regroupHow")}</p>
      <label class="row">
        {t("fewer")}
        <input type="range" class="space" autofocus min={Math.min(low, Math.ceil(now / 2))} max={Math.max(high, 2 * now)} value={count} aria-label={t("howMany")} onInput={(event) => setCount(Number(event.currentTarget.value))} />
        {t("more")} <b>{count}</b>
      </label>
      {isBusy && <p class="row"><progress aria-label={t("looking")} /> {t("looking")}</p>}
    </Sheet>
  );
}

/** The file of a photograph, and what can be done with it. */
export function FileSheet({ desk, row }: { desk: Desk; row: number }) {
  const facts = useAnswer<Facts>(`file/${row}`);
  const name = desk.name(row).split("/").at(-1)!;
  const copy = (text: string) => navigator.clipboard.writeText(text).then(() => desk.say("copied", { text }), () => desk.say("notCopied"));
  return (
    <Sheet desk={desk} name="sheet file" label={name}>
      <p dir="auto">{facts?.path}</p>
      <p>{facts && (facts.date ? t("taken", { date: facts.date.replace("T", " ") }) : t("noDate"))}</p>
      <a class="button" href={address(`original/${desk.summary!.generation}/${row}`)} target="_blank" rel="noopener" autofocus>{t("openOriginal")}</a>
      <button onClick={() => void post("show_in_folder", { row, generation: desk.summary!.generation }).then(() => desk.say("shownInFolder"), (error) => desk.fail(error))}>{t("showInFolder")}</button>
      <button disabled={!facts} onClick={() => void copy(facts!.path)}>{t("copyPath")}</button>
    </Sheet>
  );
}
