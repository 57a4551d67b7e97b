"""Whether the words of a public function name each of its parameters.

The words are the function's `///` comment, or its class's, where all of its calls share a parameter.
"The same ..." stands for the words above it. Only HEADERS are held to it: what a trainer calls.
"""
import re

HEADERS = ("offloader.hpp", "chunk.hpp", "buffer.hpp", "layers.hpp", "keyed.hpp", "graph.hpp",
           "host_state.hpp", "torch.hpp", "parse.hpp", "validate.hpp", "codec/fp8.hpp",
           "trace/picture.hpp", "trace/report.hpp", "trace/summary.hpp")
SHARES = ("The same", "Does not compile", "The other")
CLASS = re.compile(r"^(?:template .*> ?)?(?:class|struct) (?:\[\[\w+\]\] )?(\w+)(?! \w*;)")


def declarations(text):
    """(line, words, declaration) of each `///` comment, those of private members left out."""
    lines, at, public = text.split("\n"), 0, True
    while at < len(lines):
        line = lines[at].strip()
        if line in ("private:", "protected:"):
            public = False
        elif line == "public:" or re.match(r"(template|class|struct)\b", lines[at]):
            public = True
        if not line.startswith("///"):
            at += 1
            continue
        begin, words, declared = at, [], []
        while at < len(lines) and lines[at].strip().startswith("///"):
            words.append(lines[at].strip()[3:].strip())
            at += 1
        for line in lines[at:at + 12]:
            declared.append(line.strip())
            so_far = " ".join(declared)
            if so_far.count("(") == so_far.count(")") and re.search(r"[{;}]\s*(//.*)?$|^\s*: ", line):
                break
        if public:
            yield begin + 1, " ".join(words), " ".join(declared)


def in_brackets(text):
    """What stands before the bracket that closes the one before `text`."""
    depth = 1
    for index, letter in enumerate(text):
        depth += (letter in "(<[{") - (letter in ")>]}")
        if depth == 0:
            return text[:index]
    return text


def parameters(declaration):
    """(name of the function, names of its parameters), or None."""
    if declaration.startswith("template"):
        head = declaration.partition("<")[2]
        declaration = head[len(in_brackets(head)) + 1:]
    declaration = re.sub(r"^\s*requires \S+(<[^>]*>)?", "", declaration)
    found = re.match(r"[^({;=]*?(\w+)\(", declaration)
    if not found or "operator" in declaration[:found.end()] or re.match(r"\s*(using|enum)\b", declaration):
        return None
    names, argument, depth = [], "", 0
    for letter in in_brackets(declaration[found.end():]) + ",":
        depth += (letter in "(<[{") - (letter in ")>]}")
        if letter == "," and depth == 0:
            named = re.search(r"[\s&*](\w+)$", argument.partition("=")[0].strip())
            names += [named[1]] if named else []
            argument = ""
        else:
            argument += letter
    return found[1], names


def parameter_errors(file, text):
    errors, of_class = [], ""
    for line, words, declaration in declarations(text):
        if CLASS.match(declaration):
            of_class = words
        function = parameters(declaration)
        if function is None or words.startswith(SHARES) or CLASS.match(declaration):
            continue
        name, names = function
        missing = [each for each in names if not re.search(rf"\b{each}\b", f"{words} {of_class}")]
        if missing:
            errors.append(f"{file}:{line}: the words of {name} do not name {', '.join(missing)}")
    return errors


RIGHT = """
/// A box. `stream` orders each call.
template <class T, device Device>
class box {
 public:
  /// Puts `count` things in.
  template <class U>
    requires std::integral<U>
  void put(std::size_t count = {1, 2}, const std::function<void(int, T)>& with,
           stream_ref stream);
  /// The same for all.
  void put(int all);
  /// Made of `from`.
  explicit box(T from) : from_(from) {}

 private:
  /// Nobody's.
  void hidden(int value);
};
"""


def self_test(expect):
    expect("parameters", parameter_errors("a.hpp", RIGHT.replace("things in", "things in, by `with`")))
    expect("a parameter", parameter_errors("a.hpp", RIGHT), "a.hpp:6: the words of put do not name with")
    expect("a shared one", parameter_errors("a.hpp", RIGHT.replace("things", "`with` things").replace(
        "`stream` orders", "It orders")), "put do not name stream")
    expect("one of a constructor", parameter_errors("a.hpp", RIGHT.replace("things", "`with` things").replace(
        "Made of `from`", "Made")), "box do not name from")
