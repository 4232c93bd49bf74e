package marks

import (
	"bytes"
	"strings"
	"testing"
)

var marker = Marker{Target: "containerd"}

// apply applies edits and checks that they can be undone.
func apply(t *testing.T, text string, edits ...Edit) string {
	t.Helper()
	changed := marker.Apply([]byte(text), File, edits)
	undone, err := marker.Undo(changed)
	if err != nil || string(undone.Text) != text {
		t.Errorf("%q, changed to %q: undone %q, %v; want the original text", text, changed, undone.Text, err)
	}
	return string(changed)
}

func TestEditsAreUndone(t *testing.T) {
	for _, text := range []string{"a\nb\nc\n", "a\nb\nc", "a\r\nb\r\nc\r\n", "a\r\nb\r\nc", "\n\n", "a", "",
		" a\n\n  b\t\n", "a\nb\r\nc\r\n"} {
		var starts []int // of lines
		for at := range len(text) + 1 {
			if at == 0 || text[at-1] == '\n' || at == len(text) {
				starts = append(starts, at)
			}
		}
		for i, at := range starts {
			for _, until := range starts[i:] {
				changed := apply(t, text, Edit{at, until, "x\ny\n"})
				if !strings.Contains(changed, "x") || !strings.Contains(changed, "y") {
					t.Errorf("%q: the new lines are not in %q", text, changed)
				}
				apply(t, text, Edit{0, 0, "first\n"}, Edit{at, until, "x\n"}, Edit{len(text), len(text), "last\n"})
			}
		}
	}
}

// A replaced line stays as a comment. Edits at the same place share their marks. Lines end as the
// text's lines do.
func TestTextAfterEdits(t *testing.T) {
	got := apply(t, "a\r\nb\r\nc", Edit{3, 6, "B\n"}, Edit{6, 6, "B2\n"}, Edit{7, 7, "D\n"})
	var lines []string
	for line := range strings.Lines(got) {
		if !strings.HasSuffix(line, "\r\n") && !strings.HasPrefix(line, marker.end()) {
			t.Errorf("the line %q does not end like the text's lines", line)
		}
		line = strings.TrimSpace(line)
		line, _, _ = strings.Cut(line, ":")
		lines = append(lines, line)
	}
	want := []string{"a", marker.begin(), "#|b", "B", "B2", marker.end(), "c", marker.begin(), "D", marker.end()}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("got the lines %q, want %q", lines, want)
	}
}

// What users add between and around our lines stays or goes with them, as the marks say.
func TestUndoOfAChangedText(t *testing.T) {
	changed := apply(t, "a\nb\n", Edit{2, 4, "B\n"}, Edit{4, 4, "c\n"})
	changed = strings.Replace("# mine\n"+changed+"d\n", "c\n", "c\nof the user\n", 1)
	changed = strings.ReplaceAll(changed, "#|", "   #|")
	undone, err := marker.Undo([]byte(changed))
	if err != nil || string(undone.Text) != "# mine\na\nb\nd\n" || undone.Blocks != 1 {
		t.Errorf("got %q in %d blocks, %v; want the user's lines in one", undone.Text, undone.Blocks, err)
	}
}

func TestOrigin(t *testing.T) {
	for _, origin := range []Origin{File, Nothing, NothingIn} {
		text := marker.Apply(nil, origin, []Edit{{Lines: "x\n"}})
		undone, err := marker.Undo(text)
		if err != nil || undone.Origin != origin || undone.Gone() != (origin != File) || len(undone.Text) != 0 {
			t.Errorf("%q: got %+v, %v; want that origin and no text", origin, undone, err)
		}
		if undone, _ = marker.Undo(append(text, "y\n"...)); undone.Gone() {
			t.Errorf("%q: a file with a line of the user counts as gone", origin)
		}
	}
}

// Marks that are not pairs are an error that names the line. Marks of other targets are text.
func TestBrokenMarks(t *testing.T) {
	begin, end := marker.begin()+": x\n", marker.end()+"\n"
	for text, line := range map[string]string{"a\n" + begin + "b\n": "line 2", "a\n" + end: "line 2",
		begin + begin + end: "line 2", begin + end + end: "line 3"} {
		if _, err := marker.Undo([]byte(text)); err == nil || !strings.Contains(err.Error(), line) {
			t.Errorf("%q: got %v, want an error with %s", text, err, line)
		}
	}
	text := Marker{Target: "containerd2"}.Apply([]byte("a\n"), File, []Edit{{2, 2, "b\n"}})
	if undone, err := marker.Undo(text); err != nil || !bytes.Equal(undone.Text, text) || undone.Blocks != 0 {
		t.Errorf("the marks of another target: got %+v, %v; want the text as it is", undone, err)
	}
}
