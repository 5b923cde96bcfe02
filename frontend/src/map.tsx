/** All photographs on a plane, like beside like; a line drawn around some selects them. */
import { useEffect, useRef, useState } from "preact/hooks";
import { getPlaces, NOWHERE } from "./api";
import { Desk } from "./desk";
import { t } from "./texts";

const MARGIN = 0.04;
const NEAR_PX = 14;
const THUMBS = 150;
const IN_SIDE = 60;
const MARKS = 15_000;
const DIM = 0x59;

interface View {
  x: number;
  y: number;
  scale: number;
}

interface Mark {
  canvas: HTMLCanvasElement;
  colour: number; // its bytes in the order of a picture's
}

/** The mark of a group: colour and shape, so that colour is never alone. */
function mark(id: number): Mark {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 14;
  const pen = canvas.getContext("2d", { willReadFrequently: true })!;
  pen.fillStyle = id === NOWHERE ? "#888" : `hsl(${(id * 137.5) % 360} 70% 50%)`;
  pen.translate(7, 7);
  pen.beginPath();
  if (id % 4 === 0) pen.arc(0, 0, 5.5, 0, 7);
  else if (id % 4 === 1) pen.rect(-5, -5, 10, 10);
  else for (const at of id % 4 === 2 ? [0, 1, 2] : [0, 1, 2, 3]) pen.lineTo(6.5 * Math.sin((at * 2 * Math.PI) / (id % 4 === 2 ? 3 : 4)), -6.5 * Math.cos((at * 2 * Math.PI) / (id % 4 === 2 ? 3 : 4)));
  pen.fill();
  const [red, green, blue] = pen.getImageData(7, 7, 1, 1).data;
  return { canvas, colour: red | (green << 8) | (blue << 16) };
}

/** Rows inside a line, given as x and y in turn. */
export function inside(places: Float32Array, line: number[]): number[] {
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

  const whole = () => {
    const { clientWidth, clientHeight } = canvas.current!;
    const scale = Math.min(clientWidth, clientHeight) * (1 - 2 * MARGIN);
    setView({ x: (clientWidth - scale) / 2, y: (clientHeight - scale) / 2, scale });
  };
  useEffect(() => {
    void getPlaces().then(setPlaces);
    let before = 0; // a panel that opens beside the map leaves every photograph where it is
    const watcher = new ResizeObserver(() => {
      if (before) repaint((times) => times + 1);
      else whole();
      before = 1;
    });
    watcher.observe(canvas.current!);
    return () => watcher.disconnect();
  }, []);

  const base = useRef(document.createElement("canvas")); // all but the line, which is drawn anew as it grows
  useEffect(() => {
    const element = canvas.current!;
    base.current.width = element.width = element.clientWidth * devicePixelRatio;
    base.current.height = element.height = element.clientHeight * devicePixelRatio;
    if (places) paint(base.current.getContext("2d", { willReadFrequently: true })!, element, places);
  }, [places, view, painted, desk.summary, desk.selected, desk.selected.size]);
  useEffect(() => {
    const pen = canvas.current!.getContext("2d")!;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, canvas.current!.width, canvas.current!.height);
    pen.drawImage(base.current, 0, 0);
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
  /** Paints dots, or marks where fewer are in view, or pictures where few are; and names. */
  const paint = (pen: CanvasRenderingContext2D, element: HTMLCanvasElement, at: Float32Array) => {
    const seen: number[] = [];
    const [right, bottom] = [element.clientWidth + 20, element.clientHeight + 20];
    for (let row = 0; row < at.length / 2 && seen.length <= MARKS; row++) {
      const x = at[2 * row] * view.scale + view.x;
      const y = at[2 * row + 1] * view.scale + view.y;
      if (x > -20 && y > -20 && x < right && y < bottom) seen.push(row);
    }
    if (seen.length > MARKS) dots(pen, at);
    pen.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    if (seen.length <= MARKS) each(pen, seen, at);
    names(pen, getComputedStyle(element), at);
  };
  /** So many that a shape could not be told from another: squares of three pixels, those that are selected last. */
  const dots = (pen: CanvasRenderingContext2D, at: Float32Array) => {
    const { width, height } = pen.canvas;
    const { group } = desk.columns;
    const image = new ImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const colours = new Uint32Array(desk.summary!.groups.reduce((most, each) => Math.max(most, each.id), 0) + 2);
    for (const { id } of [...desk.summary!.groups, { id: NOWHERE }]) colours[id + 1] = markOf(id).colour;
    const dot = (row: number, shade: number) => {
      const x = Math.round((at[2 * row] * view.scale + view.x) * devicePixelRatio);
      const y = Math.round((at[2 * row + 1] * view.scale + view.y) * devicePixelRatio);
      if (!(x > 0 && y > 0 && x < width - 1 && y < height - 1)) return;
      const colour = colours[group[row] + 1] | shade;
      for (let from = (y - 1) * width + x, line = 0; line < 3; line++, from += width) pixels[from - 1] = pixels[from] = pixels[from + 1] = colour;
    };
    const shade = (desk.selected.size ? DIM : 0xff) << 24;
    for (let row = 0; row < group.length; row++) dot(row, shade);
    for (const row of desk.selected) dot(row, 0xff << 24);
    pen.putImageData(image, 0, 0);
  };
  const each = (pen: CanvasRenderingContext2D, seen: number[], at: Float32Array) => {
    const small = seen.length <= THUMBS;
    const size = small ? 56 : 9;
    const any = desk.selected.size > 0;
    for (const row of seen) {
      const [x, y] = [at[2 * row] * view.scale + view.x, at[2 * row + 1] * view.scale + view.y];
      const picked = desk.selected.has(row);
      const picture = small ? pictureOf(row) : null;
      const side = picked ? 14 : size;
      pen.globalAlpha = any && !picked ? 0.35 : 1;
      if (picture) pen.drawImage(picture, x - size / 2, y - size / 2, size, (size * picture.naturalHeight) / picture.naturalWidth);
      else pen.drawImage(markOf(desk.columns.group[row]).canvas, x - side / 2, y - side / 2, side, side);
    }
    pen.globalAlpha = 1;
  };
  const names = (pen: CanvasRenderingContext2D, style: CSSStyleDeclaration, at: Float32Array) => {
    pen.font = `600 13px ${style.fontFamily}`;
    pen.textAlign = "center";
    pen.lineWidth = 4;
    pen.strokeStyle = style.getPropertyValue("--back");
    pen.fillStyle = style.getPropertyValue("--text");
    const taken: [number, number, number][] = []; // a name that would lie on one of a larger group is left out
    for (const { cover, name } of [...desk.summary!.groups].sort((a, b) => b.size - a.size)) {
      if (!cover.length) continue;
      const [x, y] = [at[2 * cover[0]] * view.scale + view.x, at[2 * cover[0] + 1] * view.scale + view.y];
      const half = pen.measureText(name).width / 2 + 3;
      if (taken.some(([left, top, wide]) => Math.abs(left - x) < wide + half && Math.abs(top - y) < 17)) continue;
      taken.push([x, y, half]);
      pen.strokeText(name, x, y);
      pen.fillText(name, x, y);
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
    repaint((before) => before + 1);
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
      if (row >= 0) desk.open({ kind: "large", index: row, why: false });
    }
  };
  const shown = [...desk.selected].slice(0, IN_SIDE);
  return (
    <section class="map" aria-label={t("map")} data-painted={painted}
      onKeyDown={(event) => (space.current ||= event.key === " ")} onKeyUp={() => (space.current = false)}>
      <div class="plane">
        <canvas ref={canvas} tabIndex={0} role="img" aria-label={t("mapHow")} class={hand ? "hand" : ""}
          onPointerDown={(event) => (canvas.current!.setPointerCapture(event.pointerId), (line.current = hand || space.current ? [] : place(event)))}
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
        <div class="row mapkeys">
          <button aria-label={t("larger")} onClick={() => middle(1.5)}>+</button>
          <button aria-label={t("smaller")} onClick={() => middle(1 / 1.5)}>−</button>
          <button onClick={whole}>{t("mapAll")}</button>
          <button aria-pressed={hand} class={hand ? "here" : ""} onClick={() => setHand(!hand)}>{t("mapMove")}</button>
          <small>{t("mapHow")}</small>
        </div>
      </div>
      {shown.length > 0 && (
        <aside class="chosen" aria-label={t("selected", { n: desk.selected.size })}>
          {shown.map((row) => (
            <img key={row} src={desk.picture(row, 128)} alt={desk.label(row)} title={desk.label(row)} />
          ))}
        </aside>
      )}
    </section>
  );
}
