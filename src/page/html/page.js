// Keeps the page up to date. Every page and every form also works without this script.
(() => {
  'use strict';
  const FIRST_WAIT = 2000, LAST_WAIT = 60000, LAST_ANSWER = 10000, SILENCE = 1800, HIDDEN = 10000, TYPING = 250;
  let stream = null, wait = FIRST_WAIT, timer = 0, retry = 0, silence = 0, typing = 0, isSilent = false, shown = '', refreshed = new Date(), loading = false, again = false, title = document.title, address = location.href;

  const main = () => document.querySelector('main');
  // What the user selects or types in: it is left as it is.
  function inUse() {
    const at = document.activeElement;
    if (at && at.matches('input, select, textarea')) return at;
    const selection = getSelection();
    if (selection.isCollapsed) return null;
    const node = selection.getRangeAt(0).commonAncestorContainer;
    const element = node.nodeType === Node.ELEMENT_NODE ? node : node.parentElement;
    return element.contains(main()) ? main() : main().contains(element) ? element : null;
  }
  // What an element of the old text has in common with the same element of the new text.
  const key = (element) => element.id || [element.tagName, element.getAttribute('href'),
    element.closest('form')?.getAttribute('action'), element.querySelector('summary')?.firstChild.textContent ?? element.textContent].join('\n');
  const find = (tag, wanted) => [...document.querySelectorAll(tag)].find((element) => key(element) === wanted);
  const scrolled = () => [...main().querySelectorAll('pre, div, table')];
  // An output is shown from its end, and followed while its end is in view.
  const isAtEnd = (element) => element.scrollTop + element.clientHeight >= element.scrollHeight - 4;
  const toEnd = (of) => of.querySelectorAll('.output pre').forEach((pre) => { pre.scrollTop = pre.scrollHeight; });

  // Replaces an element, except what is in use within it. Returns whether all that differs was replaced, but for a field.
  function update(old, fresh, used) {
    if (!old.contains(used)) { old.replaceWith(document.adoptNode(fresh)); return true; }
    if (old === used) return old.isEqualNode(fresh) || old.matches('input, select, textarea');
    if (old.tagName !== fresh.tagName) return false;
    const [before, after] = [[...old.children], [...fresh.children]];
    // Around the form of a field, parts of a page come and go with what is found.
    const [kept, next] = [[old, before], [fresh, after]].map(([page, parts]) => parts.findIndex((part) => part.contains(formOf(page, used))));
    if (kept < 0 || next < 0) {
      return before.length === after.length && before.map((child, n) => update(child, after[n], used)).every(Boolean);
    }
    before.forEach((child, n) => n !== kept && child.remove());
    before[kept].before(...after.slice(0, next));
    before[kept].after(...after.slice(next + 1));
    return update(before[kept], after[next], used);
  }
  const formOf = (page, field) => field.form &&
    [...page.querySelectorAll('form.filter')].find((form) => form.getAttribute('action') === field.form.getAttribute('action'));

  // Shows an answer. Returns whether it is a page.
  function replace(text) {
    const fresh = new DOMParser().parseFromString(text, 'text/html');
    if (!fresh.querySelector('main')) return false;
    if (text === shown) { live(); return true; }
    const used = inUse();
    const focused = document.activeElement === document.body ? null : document.activeElement;
    const [tag, focus] = focused ? [focused.tagName, key(focused)] : [];
    const details = [...document.querySelectorAll('details')].map((element) => [key(element), element.open]);
    const offsets = scrolled().map((element) =>
      [element.scrollLeft, element.matches('.output pre') && isAtEnd(element) ? Number.MAX_SAFE_INTEGER : element.scrollTop]);
    const [left, top] = [scrollX, scrollY];
    let whole = true;
    for (const part of ['header', 'main', 'footer']) {
      const [old, next] = [document, fresh].map((page) => page.querySelector(`body > ${part}`));
      if (old && next) whole = update(old, next, used) && whole;
    }
    live(fresh.title);
    document.querySelector('link[rel=icon]').href = fresh.querySelector('link[rel=icon]').getAttribute('href');
    // Two attempts may have the same key: each takes the state of the first one that is left. Another address opens what it asks for.
    const isOther = address !== location.href;
    address = location.href;
    for (const element of isOther ? [] : document.querySelectorAll('details')) {
      const at = details.findIndex(([wanted]) => wanted === key(element));
      if (at >= 0) element.open = details.splice(at, 1)[0][1];
    }
    scrolled().forEach((element, n) => offsets[n] && element.scrollTo(...offsets[n]));
    if (focused && !focused.isConnected) find(tag, focus)?.focus({ preventScroll: true });
    scrollTo(left, top);
    offerZone();
    shown = whole ? text : '';
    if (!whole) note('A part of this page is not refreshed while text in it is selected or a field of it is in use.');
    return true;
  }

  // The zone of the browser is one of those that the footer offers; choosing one needs no button.
  function offerZone() {
    const zones = document.querySelector('.zones select');
    const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
    if (!zones || !own) return;
    zones.form.querySelector('button').hidden = true;
    zones.onchange = () => zones.form.submit();
    if (![...zones.options].some((option) => option.value === own || option.text.startsWith(`${own} `))) zones.add(new Option(`${own} (browser)`, own));
  }

  async function refresh() {
    if (loading) { again = true; return; }
    loading = true;
    clearTimeout(retry);
    try {
      const answer = await fetch(location.href, { cache: 'no-store', signal: AbortSignal.timeout(LAST_ANSWER) });
      if (!replace(await answer.text())) stale(`duly answered with status ${answer.status}`);
    } catch { stale('no connection to duly'); }
    loading = false;
    const isFollowed = stream?.readyState === EventSource.OPEN && !isSilent;
    if (document.getElementById('note') || !isFollowed) askIn(document.hidden ? HIDDEN : FIRST_WAIT);
    if (again) { again = false; refresh(); }
  }

  function askIn(time) {
    clearTimeout(retry);
    retry = setTimeout(refresh, time);
  }

  // A page that is no longer refreshed must not look as if it were: badges are grey, and the title says so.
  function stale(reason) {
    document.documentElement.classList.add('stale');
    document.title = `Not live · ${title}`;
    note(`Not refreshed since ${refreshed.toLocaleTimeString()}: ${reason}. Trying again.`);
  }
  function live(fresh = title) {
    document.documentElement.classList.remove('stale');
    [document.title, title, refreshed] = [fresh, fresh, new Date()];
    if (!stream) clearTimeout(silence);
    note('');
  }
  // Says how an action ended, until the user dismisses it or acts again.
  function tell(text, link) {
    document.getElementById('told')?.remove();
    const [told, dismiss] = [document.createElement('p'), document.createElement('button')];
    told.id = 'told';
    told.setAttribute('role', 'alert');
    dismiss.textContent = 'Dismiss';
    dismiss.onclick = () => told.remove();
    told.append(`${text} `);
    if (link) {
      const to = document.createElement('a');
      [to.href, to.textContent] = [link, link.slice(1).replace('runs/', 'run ')];
      told.append(to, ' ');
    }
    told.append(dismiss);
    main().before(told);
  }
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
    if (stream) return;
    // A page without a stream asks. A browser opens few connections to one server: a window that is not visible holds none.
    askIn(document.hidden ? HIDDEN : FIRST_WAIT);
    if (document.hidden) return;
    stream = new EventSource('/changes');
    stream.onopen = () => { wait = FIRST_WAIT; heard(); refresh(); };
    stream.onmessage = () => { heard(); refresh(); };
    stream.addEventListener('alive', heard);
    stream.onerror = () => {
      stop();
      // The page is stale only if its server does not answer either.
      refresh();
      silence = setTimeout(() => stale('no sign of life from duly'), SILENCE);
      timer = setTimeout(listen, wait);
      wait = Math.min(wait * 2, LAST_WAIT);
    };
  }
  // The stream says each second that duly has looked at the database. If it says nothing for longer, the page is stale: a program that
  // hangs, or a network that is gone, closes no connection.
  function heard() {
    clearTimeout(silence);
    silence = setTimeout(() => { isSilent = true; stale('no sign of life from duly'); refresh(); }, SILENCE);
    if (isSilent) { isSilent = false; refresh(); }
  }
  function stop() {
    clearTimeout(timer);
    clearTimeout(silence);
    stream?.close();
    stream = null;
  }

  document.addEventListener('visibilitychange', () => { stop(); listen(); });
  addEventListener('pagehide', stop);
  addEventListener('pageshow', listen);

  toEnd(document);
  offerZone();
  document.addEventListener('click', ({ target }) => {
    const opened = target.closest('.output > summary')?.parentElement;
    if (opened) requestAnimationFrame(() => toEnd(opened.parentElement));
  });

  // A filter applies while it is typed; a field of which only the whole value has a meaning, when it is left.
  function apply(form) {
    clearTimeout(typing);
    const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value)).toString();
    history.replaceState(null, '', form.getAttribute('action') + (query && `?${query}`));
    refresh();
  }
  document.addEventListener('input', ({ target }) => {
    if (!target.form?.matches('.filter') || target.dataset.whole !== undefined) return;
    clearTimeout(typing);
    typing = setTimeout(apply, TYPING, target.form);
  });
  document.addEventListener('change', ({ target }) => target.form?.matches('.filter') && apply(target.form));

  document.addEventListener('submit', async (event) => {
    const form = event.target;
    if (form.method !== 'post') return;
    event.preventDefault();
    if (form.dataset.sent) return;
    form.dataset.sent = 'yes';
    try {
      const answer = await fetch(form.action, { method: 'POST', body: new URLSearchParams(new FormData(form)) });
      const fresh = new DOMParser().parseFromString(await answer.text(), 'text/html');
      const run = answer.redirected ? new URL(answer.url).pathname : '';
      const reason = fresh.querySelector('main .lead')?.textContent ?? `duly answered with status ${answer.status}.`;
      if (!answer.ok) tell(`Not done: ${reason}`);
      else if (run.startsWith('/runs/') && run !== location.pathname) tell('Done:', run);
      else if (!answer.redirected) tell(reason);
      refresh();
    } catch { tell('Not done, or without an answer: no connection to duly.'); }
    delete form.dataset.sent;
  });
})();
