/** All photographs on a plane, like beside like; a line drawn around some selects them. */
import { useEffect, useRef, useState } from "preact/hooks";
import { getBytes, NOWHERE } from "./api";
import { Desk } from "./desk";
import { t } from "./texts";

const MARGIN = 0.04;
const NEAR_PX = 14;
const THUMBS = 150;
const IN_SIDE = 60;
const MARKS = 15_000;
const DIM = 0.35; // of what is not selected
const SIGN = 40; // side of the picture that stands for a group

interface View { x: number; y: number; scale: number }

interface Mark { canvas: HTMLCanvasElement; colour: number } // its bytes in the order of a picture's

/** The mark of a group: colour and shape, so that colour is never alone. */
function mark(id: number): Mark {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 14;
  const pen = canvas.getContext("2d", { willReadFrequently: true })!;
  pen.fillStyle = id <= NOWHERE ? "#888" : `hsl(${(id * 137.5) % 360} 70% 50%)`;
  pen.translate(7, 7);
  pen.beginPath();
  if (id % 4 === 0) pen.arc(0, 0, 5.5, 0, 7);
  else if (id % 4 === 1) pen.rect(-5, -5, 10, 10);
  else {
    const corners = id % 4 === 2 ? 3 : 4;
    for (let at = 0; at < corners; at++) pen.lineTo(6.5 * Math.sin((at * 2 * Math.PI) / corners), -6.5 * Math.cos((at * 2 * Math.PI) / corners));
  }
  pen.fill();
  const [red, green, blue] = pen.getImageData(7, 7, 1, 1).data;
  return { canvas, colour: red | (green << 8) | (blue << 16) };
}

/** Rows inside a line, given as x and y in turn. */
function inside(places: Float32Array, line: number[]): number[] {
  const found: number[] = [];
  const xs = line.filter((_, at) => at % 2 === 0);
  const [left, right] = [Math.min(...xs), Math.max(...xs)];
  for (let row = 0; row < places.length / 2; row++) {
    const [x, y] = [places[2 * row], places[2 * row + 1]];
    if (!(x >= left && x <= right)) continue;
    let isIn = false;
    for (let at = 0, last = line.length - 2; at < line.length; last = at, at += 2) {
      if (line[at + 1] > y !== line[last + 1] > y && x < ((line[last] - line[at]) * (y - line[at + 1])) / (line[last + 1] - line[at + 1]) + line[at]) isIn = !isIn;
    }
    if (isIn) found.push(row);
  }
  return found;
}

export function PhotoMap({ desk }: { desk: Desk }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [places, setPlaces] = useState<Float32Array | null>(null);
  const [view, setView] = useState<View>({ x: 0, y: 0, scale: 0 });
  const [hover, setHover] = useState(-1);
  const [hand, setHand] = useState(false);
  const line = useRef<number[]>([]);
  const marks = useRef(new Map<number, Mark>());
  const images = useRef(new Map<number, HTMLImageElement>());
  const space = useRef(false);
  const [painted, repaint] = useState(0);
  const [, redraw] = useState(0);
  const [size, setSize] = useState({ width: 0, height: 0 });
  const room = useRef({ width: 0, height: 0 }); // the largest that the map has been
  room.current = { width: Math.max(room.current.width, size.width), height: Math.max(room.current.height, size.height) };

  const whole = () => {
    const { clientWidth, clientHeight } = canvas.current!;
    const scale = Math.min(clientWidth, clientHeight) * (1 - 2 * MARGIN);
    setView({ x: (clientWidth - scale) / 2, y: (clientHeight - scale) / 2, scale });
  };
  useEffect(() => {
    void getBytes("map").then((content) => setPlaces(new Float32Array(content)));
    let isPlaced = false; // a panel that opens beside the map leaves every photograph where it is
    const watcher = new ResizeObserver(() => {
      if (!canvas.current) return; // it has just left
      if (!isPlaced) whole();
      isPlaced = true;
      setSize({ width: canvas.current.clientWidth, height: canvas.current.clientHeight });
    });
    watcher.observe(canvas.current!);
    return () => watcher.disconnect();
  }, []);

  // All photographs, and those that are selected: the first is drawn for another view alone, however many are chosen.
  const [all, chosen] = [useRef(document.createElement("canvas")), useRef(document.createElement("canvas"))];
  const { width, height } = room.current;
  useEffect(() => paint(all.current, null), [places, view, painted, desk.summary, width, height]);
  useEffect(() => {
    if (desk.selected.size) paint(chosen.current, desk.selected);
  }, [places, view, painted, desk.summary, width, height, desk.selected, desk.selected.size]);
  useEffect(() => {
    if (!size.width || !size.height) return; // nothing is laid out yet
    const element = canvas.current!;
    [element.width, element.height] = [size.width * devicePixelRatio, size.height * devicePixelRatio]; // which clears it
    const pen = element.getContext("2d")!;
    pen.globalAlpha = desk.selected.size ? DIM : 1;
    pen.drawImage(all.current, 0, 0);
    pen.globalAlpha = 1;
    if (desk.selected.size) pen.drawImage(chosen.current, 0, 0);
    if (line.current.length < 4) return;
    pen.scale(devicePixelRatio, devicePixelRatio);
    pen.strokeStyle = getComputedStyle(canvas.current!).getPropertyValue("--accent");
    pen.lineWidth = 2;
    pen.beginPath();
    for (let point = 0; point < line.current.length; point += 2) pen.lineTo(line.current[point] * view.scale + view.x, line.current[point + 1] * view.scale + view.y);
    pen.closePath();
    pen.stroke();
  });

  const markOf = (id: number): Mark => {
    if (!marks.current.has(id)) marks.current.set(id, mark(id));
    return marks.current.get(id)!;
  };
  /** Paints dots, or marks where fewer are in view, or pictures where few are; and what stands for the groups. */
  const paint = (onto: HTMLCanvasElement, only: Set<number> | null) => {
    [onto.width, onto.height] = [width * devicePixelRatio, height * devicePixelRatio];
    if (!places || !onto.width || !onto.height) return;
    const pen = onto.getContext("2d", { willReadFrequently: true })!;
    const seen: number[] = [];
    for (let row = 0; row < places.length / 2 && seen.length <= MARKS; row++) {
      const x = places[2 * row] * view.scale + view.x;
      const y = places[2 * row + 1] * view.scale + view.y;
      if (x > -20 && y > -20 && x < width + 20 && y < height + 20) seen.push(row);
    }
    if (seen.length > MARKS) dots(pen, places, only);
    pen.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    if (seen.length <= MARKS) each(pen, seen, places, only);
    signs(pen, getComputedStyle(canvas.current!), places, !only && seen.length > THUMBS);
  };
  /** So many that a shape could not be told from another: squares of three pixels. */
  const dots = (pen: CanvasRenderingContext2D, at: Float32Array, only: Set<number> | null) => {
    const { width, height } = pen.canvas;
    const { group } = desk.columns;
    const image = new ImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const colours = new Uint32Array(desk.summary!.groups.reduce((most, each) => Math.max(most, each.id), 0) + 2);
    for (const { id } of [...desk.summary!.groups, { id: NOWHERE }]) colours[id + 1] = markOf(id).colour;
    const dot = (row: number) => {
      const x = Math.round((at[2 * row] * view.scale + view.x) * devicePixelRatio);
      const y = Math.round((at[2 * row + 1] * view.scale + view.y) * devicePixelRatio);
      if (!(x > 0 && y > 0 && x < width - 1 && y < height - 1)) return;
      const colour = colours[Math.max(group[row], NOWHERE) + 1] | (0xff << 24);
      for (let from = (y - 1) * width + x, line = 0; line < 3; line++, from += width) pixels[from - 1] = pixels[from] = pixels[from + 1] = colour;
    };
    if (only) only.forEach(dot);
    else for (let row = 0; row < group.length; row++) dot(row);
    pen.putImageData(image, 0, 0);
  };
  const each = (pen: CanvasRenderingContext2D, seen: number[], at: Float32Array, only: Set<number> | null) => {
    const small = seen.length <= THUMBS;
    const size = small ? 56 : 9;
    const side = only ? 14 : size;
    for (const row of only ? seen.filter((each) => only.has(each)) : seen) {
      const [x, y] = [at[2 * row] * view.scale + view.x, at[2 * row + 1] * view.scale + view.y];
      const picture = small ? pictureOf(row) : null;
      if (picture) pen.drawImage(picture, x - size / 2, y - size / 2, size, (size * picture.naturalHeight) / picture.naturalWidth);
      else pen.drawImage(markOf(desk.columns.group[row]).canvas, x - side / 2, y - side / 2, side, side);
    }
  };
  /** The surest photograph of each group where it lies, and the name below it. */
  const signs = (pen: CanvasRenderingContext2D, style: CSSStyleDeclaration, at: Float32Array, isPictured: boolean) => {
    pen.font = `600 13px ${style.fontFamily}`;
    pen.textAlign = "center";
    pen.lineWidth = 4;
    pen.strokeStyle = style.getPropertyValue("--back");
    pen.fillStyle = style.getPropertyValue("--text");
    const taken: [number, number, number][] = []; // one that would lie on that of a larger group is left out
    for (const { cover, name } of [...desk.summary!.groups].sort((a, b) => b.size - a.size)) {
      if (!cover.length) continue;
      const [x, y] = [at[2 * cover[0]] * view.scale + view.x, at[2 * cover[0] + 1] * view.scale + view.y];
      if (!(x > 0 && y > 0 && x < width && y < height)) continue;
      const half = Math.max(SIGN, pen.measureText(name).width) / 2 + 3;
      if (taken.some(([left, top, wide]) => Math.abs(left - x) < wide + half && Math.abs(top - y) < SIGN + 19)) continue;
      taken.push([x, y, half]);
      const picture = isPictured ? pictureOf(cover[0]) : null;
      const high = picture ? (SIGN * picture.naturalHeight) / picture.naturalWidth : 0;
      if (picture) pen.drawImage(picture, x - SIGN / 2, y - high / 2, SIGN, high);
      const middle = Math.max(half, Math.min(width - half, x)); // whole, at the edge too
      pen.strokeText(name, middle, y + high / 2 + 13);
      pen.fillText(name, middle, y + high / 2 + 13);
    }
  };
  const pictureOf = (row: number): HTMLImageElement | null => {
    let image = images.current.get(row);
    if (!image) {
      image = new Image();
      image.onload = () => repaint((before) => before + 1);
      image.src = desk.picture(row, 128);
      images.current.set(row, image);
    }
    return image.complete && image.naturalWidth ? image : null;
  };

  const place = (event: MouseEvent): [number, number] => [(event.offsetX - view.x) / view.scale, (event.offsetY - view.y) / view.scale];
  const nearest = (event: MouseEvent): number => {
    const [x, y] = place(event);
    let [best, found] = [(NEAR_PX / view.scale) ** 2, -1];
    for (let row = 0; places && row < places.length / 2; row++) {
      const far = (places[2 * row] - x) ** 2 + (places[2 * row + 1] - y) ** 2;
      if (far < best) [best, found] = [far, row];
    }
    return found;
  };
  const zoom = (by: number, x: number, y: number) => {
    const scale = Math.max(100, view.scale * by);
    const factor = scale / view.scale;
    setView({ x: x - (x - view.x) * factor, y: y - (y - view.y) * factor, scale });
  };
  const middle = (by: number) => zoom(by, canvas.current!.clientWidth / 2, canvas.current!.clientHeight / 2);
  const onPointerMove = (event: PointerEvent) => {
    if (!event.buttons) return setHover(nearest(event));
    if (hand || space.current || event.buttons > 1) return setView({ ...view, x: view.x + event.movementX, y: view.y + event.movementY });
    line.current.push(...place(event));
    redraw((before) => before + 1);
  };
  const onPointerUp = (event: PointerEvent) => {
    const drawn = line.current;
    line.current = [];
    if (drawn.length > 8) {
      const rows = inside(places!, drawn);
      desk.selected = new Set(event.shiftKey ? [...desk.selected, ...rows] : rows);
      desk.say("selected", { n: desk.selected.size });
    } else if (!hand && !space.current) {
      const row = nearest(event);
      if (row >= 0) desk.open({ kind: "large", row, why: false });
    }
  };
  const shown = [...desk.selected].slice(0, IN_SIDE);
  return (
    <section class="map" aria-label={t("map")} data-painted={painted}
      onKeyDown={(event) => (space.current ||= event.key === " ")} onKeyUp={() => (space.current = false)}>
      <div class="row mapkeys">
        <button aria-label={t("larger")} onClick={() => middle(1.5)}>+</button>
        <button aria-label={t("smaller")} onClick={() => middle(1 / 1.5)}>−</button>
        <button onClick={whole}>{t("mapAll")}</button>
        <button aria-pressed={hand} class={hand ? "here" : ""} onClick={() => setHand(!hand)}>{t("mapMove")}</button>
        <small class="hint">{t("mapHow")}</small>
      </div>
      <div class="plane">
        <canvas ref={canvas} tabIndex={0} role="img" aria-label={t("mapHow")} class={hand ? "hand" : ""}
          onPointerDown={(event) => (canvas.current!.setPointerCapture(event.pointerId), setHover(-1), (line.current = hand || space.current ? [] : place(event)))}
          onPointerMove={onPointerMove} onPointerUp={onPointerUp} onPointerLeave={() => setHover(-1)}
          onWheel={(event) => (event.preventDefault(), zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY))}
        />
        {!places && <p class="empty">{t("mapLaying")}</p>}
        {hover >= 0 && places && (
          <figure style={{ left: `${places[2 * hover] * view.scale + view.x}px`, top: `${places[2 * hover + 1] * view.scale + view.y}px` }}>
            <img src={desk.picture(hover, 128)} alt="" />
            <figcaption>{desk.groupName(desk.columns.group[hover])}</figcaption>
          </figure>
        )}
      </div>
      {shown.length > 0 && (
        <aside class="chosen" aria-label={t("selected", { n: desk.selected.size })}>
          {shown.map((row) => <img key={row} src={desk.picture(row, 128)} alt={desk.label(row)} title={desk.label(row)} decoding="async" loading="lazy" />)}
        </aside>
      )}
    </section>
  );
}
