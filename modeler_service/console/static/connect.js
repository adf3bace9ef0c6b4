// The test of the connection in place, so that the token need not be typed twice. Without this it is a page of its own.
const button = document.querySelector("[data-connect]");
const part = document.getElementById("connection");

button?.addEventListener("click", async (event) => {
  event.preventDefault();
  button.disabled = true;
  part.textContent = "Trying ...";
  try {
    const reply = await fetch(button.formAction, {
      method: "POST",
      body: new FormData(button.form),
      headers: { "X-Fragment": "1" },
    });
    if (reply.status === 401) { location.reload(); return; }
    const fresh = new DOMParser().parseFromString(await reply.text(), "text/html");
    part.replaceChildren(...(reply.ok ? fresh.body.childNodes : ["The service did not take the test: try again."]));
    const queries = button.form.elements.queries;
    queries.value ||= part.querySelector("[data-fill]")?.dataset.fill ?? "";
  } catch {
    part.textContent = "The service does not answer: try again.";
  } finally {
    button.disabled = false;
  }
});
