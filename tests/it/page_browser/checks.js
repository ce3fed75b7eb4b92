// Functions that look for faults of the page that is shown. Each returns lines, one for each fault.
window.__checks = (() => {
    const shown = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
    const name = (element) => {
        const text = (element.textContent || "").trim().replace(/\s+/g, " ").slice(0, 40);
        const kind = element.getAttribute("class");
        return `<${element.tagName.toLowerCase()}${kind ? ` class="${kind}"` : ""}> ${JSON.stringify(text)}`;
    };
    // Each visible text node that holds more than white space, with its element and its box.
    const texts = () => {
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        const found = [];
        while (walker.nextNode()) {
            const node = walker.currentNode, element = node.parentElement;
            if (!node.data.trim() || !element || element.closest("script, style, title") || !shown(element)) continue;
            const range = document.createRange();
            range.selectNodeContents(node);
            const box = range.getBoundingClientRect();
            if (box.width > 1 && box.height > 1) found.push({ element, box });
        }
        return found;
    };
    const scrolls = (element) => {
        for (let at = element; at && at !== document.body; at = at.parentElement) {
            if (/auto|scroll/.test(getComputedStyle(at).overflowX)) return true;
        }
        return false;
    };

    const overflow = () => {
        const width = document.documentElement.clientWidth, faults = [];
        const whole = document.scrollingElement.scrollWidth;
        if (whole > width) faults.push(`the page is ${whole} pixels wide, the screen ${width}`);
        for (const { element, box } of texts()) {
            // `clipped` examines whether an ellipsis shows that the text goes on.
            const isHidden = /hidden|clip/.test(getComputedStyle(element).overflowX);
            const isOutside = box.right > width + 1 || box.left < -1;
            if (isOutside && !isHidden && !scrolls(element) && !element.closest(".skip")) {
                faults.push(`text from ${Math.round(box.left)} to ${Math.round(box.right)}: ${name(element)}`);
            }
        }
        return faults;
    };

    // Text that its own box cuts off, unless an ellipsis shows it.
    const clipped = () => texts().filter(({ element }) => {
        const style = getComputedStyle(element);
        const cuts = /hidden|clip/.test(style.overflowX) && element.clientWidth > 2;
        return cuts && style.textOverflow !== "ellipsis" && element.scrollWidth > element.clientWidth + 1;
    }).map(({ element }) => `cut off: ${name(element)}`);

    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    // A colour in any notation as red, green, blue and opacity.
    const colour = (text) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = text;
        canvas.fillRect(0, 0, 1, 1);
        const [red, green, blue, opacity] = canvas.getImageData(0, 0, 1, 1).data;
        return [red, green, blue, opacity / 255];
    };
    const over = (top, below) => {
        const mix = (at) => top[at] * top[3] + below[at] * (1 - top[3]);
        return [mix(0), mix(1), mix(2), 1];
    };
    const luminance = ([red, green, blue]) => {
        const linear = (part) => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
        return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
    };
    const background = (element) => {
        const layers = [];
        for (let at = element; at; at = at.parentElement) {
            const layer = colour(getComputedStyle(at).backgroundColor);
            layers.push(layer);
            if (layer[3] === 1) break;
        }
        return layers.reduceRight((below, layer) => over(layer, below), colour("canvas"));
    };

    // Text with less contrast than WCAG AA asks for. Text of a drawing is compared with the background of the drawing.
    const contrast = () => {
        const faults = new Set();
        for (const { element } of texts()) {
            const style = getComputedStyle(element), drawing = element.closest("svg");
            const below = background(drawing || element);
            let front = colour(drawing ? style.fill : style.color);
            for (let at = element; at; at = at.parentElement) front[3] *= Number(getComputedStyle(at).opacity);
            const [light, dark] = [luminance(over(front, below)), luminance(below)].sort((a, b) => b - a);
            const ratio = (light + 0.05) / (dark + 0.05);
            const size = parseFloat(style.fontSize);
            const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
            if (ratio < (isLarge ? 3 : 4.5)) faults.add(`contrast ${ratio.toFixed(2)}: ${name(element)}`);
        }
        return [...faults];
    };

    // What the keyboard must reach. Bars and marks of runs have tabindex -1: tables have the same links, with fewer stops.
    const controls = () => [...document.querySelectorAll(
        "a[href], button:not([disabled]), input:not([type=hidden]):not([disabled]), select, summary, textarea, [tabindex='0']",
    )].filter((element) => element.tabIndex >= 0 && shown(element));
    const focused = new Map();
    const watchFocus = () => document.addEventListener("focusin", ({ target }) => {
        const style = getComputedStyle(target), box = target.getBoundingClientRect();
        const hasOutline = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
        const isOnScreen = box.width > 1 && box.height > 1 && box.bottom > 0 && box.top < innerHeight;
        focused.set(target, hasOutline ? (isOnScreen ? "" : "focused outside of the screen") : "focused without an outline");
    });
    const focus = () => [
        ...controls().filter((control) => !focused.has(control)).map((control) => `never focused: ${name(control)}`),
        ...[...focused].filter(([, fault]) => fault).map(([control, fault]) => `${fault}: ${name(control)}`),
    ];

    return { overflow, clipped, contrast, controls, watchFocus, focus };
})();
