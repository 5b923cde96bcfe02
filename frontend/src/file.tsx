/** Photographs as files: their dates, their folders, the files themselves, and what was left out. */
import { useMemo } from "preact/hooks";
import { address, Facts, Folder, post, Skipped } from "./api";
import { onArrow } from "./areas";
import { Desk } from "./desk";
import { Cover } from "./groups";
import { Sheet, useAnswer } from "./sheet";
import { t } from "./texts";

const MOST_TIMES = 36;
const MOST_FILES = 200;

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
      <button onClick={() => void copy(name)}>{t("copyName")}</button>
    </Sheet>
  );
}

/** Days, months or years, whichever are few, of photographs that are sorted by date. */
export function Strip({ desk }: { desk: Desk }) {
  const { shown } = desk;
  const dates = desk.order === "date" || desk.order === "late" ? desk.dates : null;
  const times = useMemo(() => dates && timesOf(shown, dates), [dates, shown]);
  if (!times) return null;
  if (!times.length) return <p class="row"><small>{t("noDates")}</small></p>;
  return (
    <div class="row strip" role="toolbar" aria-label={t("times")} onKeyDown={onArrow}>
      {times.map(({ name, first, count }, at) => (
        <button key={name} class="stop" tabIndex={at ? -1 : 0} onClick={() => ((desk.focus = first), (desk.refocus = "first"), desk.changed())}>
          {name} <small>{count}</small>
        </button>
      ))}
    </div>
  );
}

function timesOf(rows: number[], dates: Float64Array): { name: string; first: number; count: number }[] {
  const days = rows.map((row) => (Number.isNaN(dates[row]) ? "" : new Date(dates[row] * 1000).toISOString().slice(0, 10)));
  let found: { name: string; first: number; count: number }[] = [];
  for (const length of [10, 7, 4]) {
    found = [];
    days.forEach((day, first) => {
      const name = day.slice(0, length) || t("noDate");
      if (found.at(-1)?.name === name) found.at(-1)!.count++;
      else if (day || found.length) found.push({ name, first, count: 1 });
    });
    if (found.length <= MOST_TIMES) break;
  }
  return found;
}

/** Folders that hold photographs. */
export function Folders({ desk }: { desk: Desk }) {
  return (
    <div class="scroll overview changes">
      <h2>{t("folders")}</h2>
      <ul data-area="main" onKeyDown={onArrow}>
        {desk.folders.map((folder: Folder, at) => (
          <li key={folder.name}>
            <button class="offer stop" tabIndex={at ? -1 : 0} onClick={() => desk.go("folder", folder.name)}>
              <Cover desk={desk} group={{ cover: folder.rows }} most={3} />
              <span dir="auto">{folder.name || t("topFolder")}</span>
              <small>{t("photos", { n: folder.rows.length })}</small>
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}

/** Files that were left out, and why. */
export function LeftOut({ desk }: { desk: Desk }) {
  const found = desk.ask<Skipped[]>("skipped") ?? [];
  return (
    <div class="scroll overview changes" data-area="main" tabIndex={-1}>
      <h2>{t("skipped")}</h2>
      <p>{t("skippedHow")}</p>
      {found.map(({ note, files }) => (
        <section key={note}>
          <h3>{note} <small>{files.length}</small></h3>
          <ul>{files.slice(0, MOST_FILES).map((file) => <li key={file} dir="auto">{file}</li>)}</ul>
          {files.length > MOST_FILES && <p>{t("moreFiles", { n: files.length - MOST_FILES })}</p>}
        </section>
      ))}
    </div>
  );
}
