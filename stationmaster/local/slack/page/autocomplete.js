// What the composer offers while a slash command is typed. Pure: text in, suggestions out.

/**
 * @returns {null | {title: string, items: {label, description, insert, isCommand}[], hint: string}}
 *   `insert` is the whole text after accepting; null when there is nothing to offer.
 */
export function suggest(text, commands) {
  if (!text.startsWith("/") || text.includes("\n")) return null;
  const [name, ...rest] = text.split(" ");
  if (!rest.length) return commandsLike(name, commands);
  const command = commands.find((known) => known.command === name);
  if (!command) return null;
  return argumentsLike(command, rest, text);
}

function commandsLike(typed, commands) {
  const items = commands
    .filter((command) => command.command.startsWith(typed))
    .map((command) => ({
      label: command.command,
      usage: command.usage_hint,
      description: command.description,
      insert: `${command.command} `,
      isCommand: true,
    }));
  return items.length ? { title: "Commands", items, hint: "" } : null;
}

function argumentsLike(command, words, text) {
  const typed = words.at(-1);
  const head = text.slice(0, text.length - typed.length);
  const first = words.find((word) => word && !word.includes("=")) || "";
  const numWords = words.slice(0, -1).filter((word) => word && !word.includes("=")).length;
  const isFirst = words.filter(Boolean).length <= (typed ? 1 : 0);
  const hint = `${command.command} ${command.usage_hint}`;
  const [key, value] = typed.split("=", 2);
  if (value !== undefined) {
    const argument = command.arguments.find((known) => known.kind === "key" && known.name === key);
    if (!argument) return { title: `Unknown key ${key}`, items: [], hint };
    const items = choices(argument, value).map((choice) => ({
      label: `${key}=${choice.value}`,
      description: choice.description,
      insert: `${head}${key}=${choice.value} `,
    }));
    return { title: argument.hint || key, items, hint };
  }
  if (isFirst) {
    const items = command.arguments
      .filter((known) => known.kind === "word" && !known.after.length)
      .flatMap((known) => wordItems(known, typed, head));
    if (items.length) return { title: "Recipes and subcommands", items, hint };
  }
  const second = command.arguments
    .filter((known) => known.kind === "word" && known.after.includes(first) && numWords === 1)
    .flatMap((known) => wordItems(known, typed, head));
  const used = new Set(words.slice(0, -1).map((word) => word.split("=")[0]));
  const items = command.arguments
    .filter((known) => known.kind === "key" && known.name.startsWith(typed))
    .filter((known) => !used.has(known.name))
    .filter((known) => !known.after.length || known.after.includes(first))
    .map((known) => ({
      label: `${known.name}=`, description: known.hint, insert: `${head}${known.name}=`,
    }));
  items.unshift(...second);
  if (!items.length) return { title: "", items, hint };
  return { title: `Options for ${first || command.command}`, items, hint };
}

function wordItems(argument, typed, head) {
  return choices(argument, typed).map((choice) => ({
    label: choice.value, description: choice.description, insert: `${head}${choice.value} `,
  }));
}

function choices(argument, typed) {
  const found = argument.choices.filter((choice) => choice.value.startsWith(typed));
  return found.length === 1 && found[0].value === typed ? [] : found;
}
