// Bytes that a page stores as text.

export function bytesOfBase64(text) {
  const binary = atob(text), bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

// The bytes of `text_of_bytes` (salviz.explorer.page_compression): seven bits per character.
export function bytesOfText(text) {
  const bytes = new Uint8Array(Math.floor(text.length * 7 / 8));
  let read = 0, count = 0, at = 0;
  for (let i = 0; i < text.length; i++) {
    read = read << 7 | text.charCodeAt(i) & 127;
    count += 7;
    if (count < 8) continue;
    count -= 8;
    bytes[at++] = read >> count;
  }
  return bytes;
}
