/** A photograph as it fits, or nearer, down to a pixel of the file for a pixel of the screen. */
import { useEffect, useRef, useState } from "preact/hooks";
import { address } from "./api";
import { Desk } from "./desk";
import { Photo } from "./sheet";

const STEP = 1.5;
const NEAREST = 64;

export interface ZoomKeys {
  isNear: boolean; // so that arrows and fingers move it, and turn to no other one
  take: (key: string) => boolean;
}

export function Zoom({ desk, row, keys }: { desk: Desk; row: number; keys: { current: ZoomKeys } }) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ factor: 1, x: 0, y: 0 }); // of what fits, and how far its middle is from the middle
  const [original, setOriginal] = useState<HTMLImageElement | null>(null);
  const loading = useRef<Promise<HTMLImageElement | null> | null>(null);
  const held = useRef<{ x: number; y: number } | null>(null);
  const isHere = useRef(true);
  useEffect(() => () => void (isHere.current = false), []);

  /** How large a picture is that fits: the file itself, once it is here, since a preview is up to a pixel narrower or wider. */
  const fits = (of = original ?? box.current!.querySelector("img")!) => {
    const { clientWidth: w, clientHeight: h } = box.current!;
    const { naturalWidth, naturalHeight } = of;
    const scale = Math.min(w / naturalWidth, h / naturalHeight);
    return { w, h, width: naturalWidth * scale, height: naturalHeight * scale };
  };
  const place = (factor: number, x: number, y: number) => {
    const { w, h, width, height } = fits();
    const within = (value: number, size: number, room: number) => {
      const most = Math.max(0, (size * factor - room) / 2);
      return Math.min(most, Math.max(-most, value));
    };
    setView({ factor, x: within(x, width, w), y: within(y, height, h) });
  };
  /** The file itself; what no browser shows stays the preview, and that is said. */
  const load = () =>
    (loading.current ??= (async () => {
      const image = new Image();
      image.src = address(`original/${desk.summary!.generation}/${row}`);
      try {
        await image.decode();
      } catch {
        if (isHere.current) desk.say("noOriginal");
        return null;
      }
      if (isHere.current) setOriginal(image);
      return image;
    })());
  /** Nearer or farther; what lies at a point stays there. */
  const zoom = (factor: number, x = 0, y = 0) => {
    const to = Math.min(NEAREST, factor);
    if (to > 1 && desk.summary!.can_write) void load();
    place(to, x - ((x - view.x) * to) / view.factor, y - ((y - view.y) * to) / view.factor);
  };
  const toPixels = async (x = 0, y = 0) => {
    if (view.factor !== 1) return place(1, 0, 0);
    const image = (desk.summary!.can_write ? await load() : null) ?? box.current?.querySelector("img");
    if (image && isHere.current) zoom(image.naturalWidth / devicePixelRatio / fits(image).width, x, y);
  };
  const at = (event: MouseEvent): [number, number] => {
    const { left, top, width, height } = box.current!.getBoundingClientRect();
    return [event.clientX - left - width / 2, event.clientY - top - height / 2];
  };
  keys.current = {
    isNear: view.factor > 1,
    take: (key) => {
      const { w, h } = fits();
      const ways: Record<string, [number, number]> = { ArrowLeft: [w, 0], ArrowRight: [-w, 0], ArrowUp: [0, h], ArrowDown: [0, -h] };
      if (key.toLowerCase() === "z") void toPixels();
      else if (key === "+" || key === "=") zoom(view.factor * STEP);
      else if (key === "-") zoom(Math.max(1, view.factor / STEP));
      else if (ways[key] && view.factor > 1) place(view.factor, view.x + ways[key][0] / 5, view.y + ways[key][1] / 5);
      else return false;
      return true;
    },
  };
  const { width, height } = view.factor === 1 || !box.current ? { width: 0, height: 0 } : fits();
  const style = view.factor === 1 ? {} : {
    position: "absolute", left: "50%", top: "50%", width: `${width * view.factor}px`, height: `${height * view.factor}px`, maxWidth: "none",
    transform: `translate(calc(-50% + ${view.x}px), calc(-50% + ${view.y}px))`,
  }; // prettier-ignore
  return (
    <div
      class={`zoom${view.factor > 1 ? " near" : ""}`}
      ref={box}
      onWheel={(event) => (event.preventDefault(), zoom(Math.max(1, view.factor * (event.deltaY < 0 ? 1.2 : 1 / 1.2)), ...at(event)))}
      onDblClick={(event) => void toPixels(...at(event))}
      onPointerDown={(event) => {
        if (view.factor <= 1 || event.button) return;
        box.current!.setPointerCapture(event.pointerId);
        held.current = { x: event.clientX - view.x, y: event.clientY - view.y };
      }}
      onPointerMove={(event) => held.current && place(view.factor, event.clientX - held.current.x, event.clientY - held.current.y)}
      onPointerUp={() => (held.current = null)}
      onPointerCancel={() => (held.current = null)}
    >
      <Photo desk={desk} row={row} src={view.factor === 1 ? undefined : original?.src} style={style} />
    </div>
  );
}
