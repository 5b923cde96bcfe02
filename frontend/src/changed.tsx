/** What is different since the last photographs came; every part of it opens in the grid. */
import { Desk } from "./desk";
import { Offer } from "./groups";
import { t, Words } from "./texts";

const IN_ROW = 12;

export function Changed({ desk }: { desk: Desk }) {
  const change = desk.change;
  if (!change) return <p class="empty">{t("loading")}</p>;
  const arrived = desk.counts.new;
  const none = !arrived && !Object.values(change).some((each: unknown[]) => each.length);
  return (
    <div class="scroll overview changes">
      <h2>{t("changedSince")}</h2>
      {none && <p class="empty">{t("unchanged")}</p>}
      {arrived > 0 && (
        <p class="row">
          {t("arrived", { n: arrived })}
          <button class="primary" onClick={() => desk.go("new")}>{t("sortThem")}</button>
        </p>
      )}
      <Groups desk={desk} heading="newGroups" sizes={change.new.map((id) => [id, 0, 0])} />
      <Groups desk={desk} heading="grown" sizes={change.grown} />
      <Groups desk={desk} heading="shrunk" sizes={change.shrunk} />
      <Photographs desk={desk} place="moved" rows={change.moved} />
      <Photographs desk={desk} place="doubted" rows={change.doubted} />
    </div>
  );
}

function Groups({ desk, heading, sizes }: { desk: Desk; heading: Words; sizes: [number, number, number][] }) {
  const listed = sizes.filter(([id]) => desk.byId.has(id));
  if (!listed.length) return null;
  return (
    <section>
      <h3>{t(heading)} <small>{listed.length}</small></h3>
      <div class="row">
        {listed.map(([id, before, after]) => (
          <Offer key={id} desk={desk} group={desk.byId.get(id)!} most={3} note={before ? t("sizes", { before, after }) : desk.byId.get(id)!.size} onClick={() => desk.go("group", id)} />
        ))}
      </div>
    </section>
  );
}

function Photographs({ desk, place, rows }: { desk: Desk; place: "moved" | "doubted"; rows: number[] }) {
  if (!rows.length) return null;
  return (
    <section>
      <h3>{t(`${place}Photos`)} <small>{rows.length}</small></h3>
      <div class="row">
        {rows.slice(0, IN_ROW).map((row) => <img key={row} src={desk.picture(row, 128)} alt={desk.label(row)} />)}
        <button onClick={() => desk.go(place)}>{t("lookAtAll", { n: rows.length })}</button>
      </div>
    </section>
  );
}
