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
  // The live view of a kernel takes precedence, and a copy that is out of sight need not open yet.
  const seen = new IntersectionObserver(entries => {
    if (!entries.some(entry => entry.isIntersecting)) return;
    seen.disconnect();
    open().catch(error => console.warn('salviz: could not open the static copy; showing its image', error));
  });
  setTimeout(() => seen.observe(place), 1500);
}
