{
  const script = document.currentScript, packed = script.previousElementSibling,
    place = packed.previousElementSibling;
  const open = async () => {
    if ('live' in place.dataset) return;
    const bytes = Uint8Array.from(atob(packed.textContent), letter => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
    const {program, styles, parts} = JSON.parse(await new Response(stream).text());
    const address = URL.createObjectURL(new Blob([program], {type: 'text/javascript'}));
    const {default: openCopy} = await import(address);
    URL.revokeObjectURL(address);
    await openCopy(place, styles, parts);
  };
  // A kernel's live view comes first; a copy out of sight can wait.
  const seen = new IntersectionObserver(entries => {
    if (!entries.some(entry => entry.isIntersecting)) return;
    seen.disconnect();
    open().catch(error => console.warn('salviz: the copy could not be opened, its picture stays', error));
  });
  setTimeout(() => seen.observe(place), 1500);
}
