// Keeps the page up to date. Every page and every form also works without this script.
(() => {
  'use strict';
  const FIRST_WAIT = 2000, LAST_WAIT = 60000;
  let stream = null, wait = FIRST_WAIT, timer = 0, retry = 0, shown = '', refreshed = new Date(), loading = false, again = false;

  const main = () => document.querySelector('main');
  const isBusy = () => {
    const at = document.activeElement;
    return !getSelection().isCollapsed || (at && at.matches('main input, main select, main textarea'));
  };
  // What an element of the old text has in common with the same element of the new text.
  const key = (element) => element.id || [element.tagName, element.getAttribute('href'),
    element.closest('form')?.getAttribute('action'), element.querySelector('summary')?.textContent ?? element.textContent].join('\n');
  const find = (tag, wanted) => [...document.querySelectorAll(tag)].find((element) => key(element) === wanted);
  const scrolled = () => [...main().querySelectorAll('pre, div, table')];

  // Shows an answer. Returns whether it is a page.
  function replace(text) {
    const fresh = new DOMParser().parseFromString(text, 'text/html');
    if (!fresh.querySelector('main')) return false;
    if (text === shown) return true;
    const focused = document.activeElement === document.body ? null : document.activeElement;
    const [tag, focus] = focused ? [focused.tagName, key(focused)] : [];
    const details = [...document.querySelectorAll('details')].map((element) => [key(element), element.open]);
    const offsets = scrolled().map((element) => [element.scrollLeft, element.scrollTop]);
    const [left, top] = [scrollX, scrollY];
    for (const part of ['header', 'main', 'footer']) {
      const next = fresh.querySelector(`body > ${part}`);
      if (next) document.querySelector(`body > ${part}`)?.replaceWith(document.adoptNode(next));
    }
    document.title = fresh.title;
    // Two attempts may have the same key: each takes the state of the first one that is left.
    for (const element of document.querySelectorAll('details')) {
      const at = details.findIndex(([wanted]) => wanted === key(element));
      if (at >= 0) element.open = details.splice(at, 1)[0][1];
    }
    scrolled().forEach((element, n) => offsets[n] && element.scrollTo(...offsets[n]));
    if (focused && !focused.isConnected) find(tag, focus)?.focus({ preventScroll: true });
    scrollTo(left, top);
    shown = text;
    return true;
  }

  async function refresh() {
    if (loading) { again = true; return; }
    loading = true;
    clearTimeout(retry);
    try {
      if (!isBusy()) {
        const answer = await fetch(location.href, { cache: 'no-store' });
        const text = await answer.text();
        // What the user selects or types meanwhile stays.
        if (!isBusy()) {
          if (replace(text)) { refreshed = new Date(); note(''); } else stale(`duly answered with status ${answer.status}`);
        }
      }
    } catch { stale('no connection to duly'); }
    loading = false;
    if (document.getElementById('note')) retry = setTimeout(refresh, FIRST_WAIT);
    if (again) { again = false; refresh(); }
  }

  // A page that is no longer refreshed must not look as if it were.
  const stale = (reason) => note(`Not refreshed since ${refreshed.toLocaleTimeString()}: ${reason}. Trying again.`);
  function note(text) {
    const old = document.getElementById('note');
    if (!text) { old?.remove(); return; }
    const made = old ?? document.createElement('p');
    made.id = 'note';
    made.setAttribute('role', 'status');
    made.textContent = text;
    if (!old) main().before(made);
  }

  function listen() {
    clearTimeout(timer);
    // A browser opens few connections to one server: a window that is not visible takes none.
    if (stream || document.hidden) return;
    stream = new EventSource('/changes');
    stream.onopen = () => { wait = FIRST_WAIT; refresh(); };
    stream.onmessage = refresh;
    stream.onerror = () => {
      stop();
      stale('no connection to duly');
      timer = setTimeout(listen, wait);
      wait = Math.min(wait * 2, LAST_WAIT);
    };
  }
  function stop() {
    clearTimeout(timer);
    stream?.close();
    stream = null;
  }

  document.addEventListener('visibilitychange', () => document.hidden ? stop() : listen());
  addEventListener('pagehide', stop);
  addEventListener('pageshow', listen);

  document.addEventListener('submit', async (event) => {
    const form = event.target;
    if (form.method !== 'post') return;
    event.preventDefault();
    if (form.dataset.sent) return;
    form.dataset.sent = 'yes';
    try {
      const answer = await fetch(form.action, { method: 'POST', body: new URLSearchParams(new FormData(form)) });
      if (answer.ok) await refresh();
      else if (!replace(await answer.text())) note(`Not done: duly answered with status ${answer.status}.`);
    } catch { note('Not done: no connection to duly.'); }
    delete form.dataset.sent;
  });
})();
