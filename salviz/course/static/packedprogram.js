// Unpacks the program of a page, which is gzipped in base64, and runs it as a module.
const packed = document.getElementById('course-program').textContent;

async function runProgram() {
  const bytes = Uint8Array.from(atob(packed), letter => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  const script = Object.assign(document.createElement('script'), {type: 'module'});
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

runProgram().catch(error => {
  const textContent = 'DecompressionStream' in window ? 'The script in this page is damaged. Download the page again.'
    : 'This page needs a newer browser: Chrome 98, Edge 98, Firefox 113, Safari 16.4, or later.';
  const notice = Object.assign(document.createElement('p'), {textContent});
  notice.setAttribute('role', 'alert');
  (document.getElementById('course-main') ?? document.body).prepend(notice);
  throw error;
});
