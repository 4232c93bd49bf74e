package guess

import "strings"

// statement is an import statement of a Python source file.
type statement struct {
	isFrom bool   // the statement begins with from, otherwise with import
	rest   string // what follows on the line, without a comment and spaces around it
}

// statementSize is about the size of a statement in memory without rest, in bytes.
const statementSize = 32

// statements returns what a source file imports at module level, outside of functions and classes.
func statements(source string) (all []statement) {
	inside := false // in a function, a class, or a block for type checkers only
	for line := range strings.Lines(source) {
		indent := 0
		for indent < len(line) && (line[indent] == ' ' || line[indent] == '\t') {
			indent++
		}
		text := line[indent:]
		if indent == 0 && strings.TrimSpace(text) != "" && text[0] != '#' && text[0] != ')' {
			first, _, _ := strings.Cut(strings.TrimRight(text, "\r\n"), " ")
			inside = first == "def" || first == "class" || first == "async" || strings.Contains(text, "TYPE_CHECKING")
		}
		if inside {
			continue
		}
		rest, isImport := strings.CutPrefix(text, "import ")
		isFrom := false
		if !isImport {
			rest, isFrom = strings.CutPrefix(text, "from ")
		}
		if isImport || isFrom {
			rest, _, _ = strings.Cut(rest, "#")
			rest, _, _ = strings.Cut(rest, ";")
			all = append(all, statement{isFrom, strings.Clone(strings.TrimSpace(rest))}) // source is not kept
		}
	}
	return all
}
