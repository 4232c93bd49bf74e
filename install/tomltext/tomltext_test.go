package tomltext

import (
	"reflect"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"lighter/install/marks"
)

var marker = marks.Marker{Target: "test"}

// The settings of the tests: a key of the root table, of a table, of a table in it, and an element.
var (
	settings = []Setting{
		{nil, "version", 3},
		{[]string{"proxy", "lighter"}, "address", "/run/l.sock"},
		{[]string{"proxy", "lighter"}, "capabilities", []string{"rebase"}},
		{[]string{"proxy", "lighter", "exports"}, "root", "/var/lib/l"},
		{[]string{"plugins", "io.x", "containerd"}, "snapshotter", "lighter"},
		{[]string{"plugins", "io.x", "containerd"}, "annotate", false},
	}
	elements = []Element{{[]string{"plugins", "io.t", "unpack"},
		[]Setting{{nil, "platform", "linux"}, {nil, "snapshotter", "lighter"}}}}
)

// set returns the text with the settings. It checks that it can be undone.
func set(t *testing.T, text string) (string, error) {
	t.Helper()
	d, err := Parse([]byte(text))
	if err != nil {
		return "", err
	}
	edits, err := d.Edits(settings, elements)
	if err != nil {
		return "", err
	}
	changed := marker.Apply([]byte(text), marks.File, edits)
	undone, err := marker.Undo(changed)
	if err != nil || string(undone.Text) != text {
		t.Errorf("%q, changed to %q: undone %q, %v; want the original", text, changed, undone.Text, err)
	}
	return string(changed), nil
}

// merged returns the values of a document with the settings and elements.
func merged(t *testing.T, text string) map[string]any {
	t.Helper()
	values := map[string]any{}
	if err := toml.Unmarshal([]byte(text), &values); err != nil {
		t.Fatal(err)
	}
	table := func(path []string) map[string]any {
		at := values
		for _, key := range path {
			if at[key] == nil {
				at[key] = map[string]any{}
			}
			at = at[key].(map[string]any)
		}
		return at
	}
	for _, s := range settings {
		table(s.Table)[s.Key] = s.Value
	}
	for _, e := range elements {
		added := map[string]any{}
		for _, s := range e.Keys {
			added[s.Key] = s.Value
		}
		last := len(e.Array) - 1
		parent := table(e.Array[:last])
		list, _ := parent[e.Array[last]].([]any)
		// An element is added at the beginning of a list in one value, and at the end of others.
		if strings.Contains(text, "unpack = [") {
			parent[e.Array[last]] = append([]any{added}, list...)
		} else {
			parent[e.Array[last]] = append(list, added)
		}
	}
	return values
}

// same reports whether two trees of values are the same in TOML.
func same(t *testing.T, a, b map[string]any) bool {
	t.Helper()
	var trees [2]map[string]any
	for i, tree := range []map[string]any{a, b} {
		text, err := toml.Marshal(tree)
		if err == nil {
			err = toml.Unmarshal(text, &trees[i])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return reflect.DeepEqual(trees[0], trees[1])
}

func checkSet(t *testing.T, text string) {
	t.Helper()
	changed, err := set(t, text)
	if err != nil {
		t.Errorf("%q: %v", text, err)
		return
	}
	got := map[string]any{}
	if err := toml.Unmarshal([]byte(changed), &got); err != nil {
		t.Errorf("%q, changed to\n%s\n%v", text, changed, err)
		return
	}
	if want := merged(t, text); !same(t, got, want) {
		t.Errorf("%q, changed to\n%s\ngot %v, want %v", text, changed, got, want)
	}
}

var documents = []string{
	"", "\n", "# only a comment\n", "# no end of line", "version = 2", "version = 2 # two\n",
	"version = 3\n", "# first\n\n[debug]\n  level = 'info'\n",
	"root = '/x'\n[proxy]\n", "[proxy]\n  [proxy.lighter]\n    address = \"/old\" # old\n    type = 'snapshot'\n",
	"[proxy.lighter]\ncapabilities = [\n  'a', # first\n  'b',\n]\nother = 1\n",
	"[proxy.lighter]", "[proxy.lighter.exports]\nroot = '/var/lib/l'\n",
	"[proxy.other]\naddress = 'x'\n",
	"[proxy]\nlighter.address = '/x'\nlighter.exports.root = '/y'\n",
	"proxy.lighter.address = '/x'\n[debug]\na = 1\n",
	"[plugins]\n  [plugins.\"io.x\".containerd]\n\tsnapshotter = 'overlayfs'\n\n" +
		"\t[plugins.\"io.x\".containerd.runtimes.runc]\n",
	"[plugins.'io.x'.containerd.runtimes.runc]\n  type = 'x'\n[plugins . \"io.x\"]\n  sandbox = \"pause\"\n",
	"[plugins.\"io.x\"]\n  containerd.snapshotter = \"a\"\n  containerd.more.deep = 1\n",
	"[plugins]\n\"io.x\".sandbox = 'p'\n\"io.x\".containerd.default = 'runc'\n",
	"[[plugins.\"io.t\".unpack]]\nplatform = 'linux'\nsnapshotter = 'overlayfs'\n[plugins.\"io.t\"]\nmore = 1\n",
	"[plugins.\"io.t\"]\nunpack = []\n", "[plugins.\"io.t\"]\nunpack = [ # none\n]\n",
	"[plugins.\"io.t\"]\nunpack = [{platform = 'a'}, {platform = 'b'}] # two\n",
	"[plugins.\"io.t\"]\n  unpack = [\n    {platform = 'a'},\n    {platform = 'b'},\n  ]\nlater = 1",
	"text = \"\"\"\n[proxy.lighter]\naddress = 'no'\n\"\"\"\n", "'quoted key' = 1\n\"version\" = 2\n",
	"[[list]]\na = 1\n[list.sub]\nb = 2\n[[list]]\na = 2\n",
}

// Each document gets the settings and keeps its other values. Undone, it is the original again.
func TestSettings(t *testing.T) {
	for _, text := range documents {
		checkSet(t, text)
		checkSet(t, strings.ReplaceAll(text, "\n", "\r\n"))
		checkSet(t, strings.TrimSuffix(text, "\n"))
	}
}

// What is set already needs no edit.
func TestSettingsThatExist(t *testing.T) {
	changed, err := set(t, "a = 1\n")
	if err != nil {
		t.Fatal(err)
	}
	d, err := Parse([]byte(changed))
	if err != nil {
		t.Fatal(err)
	}
	if edits, err := d.Edits(settings, nil); err != nil || len(edits) > 0 {
		t.Errorf("got %+v, %v; want no edits", edits, err)
	}
}

// New keys are where a person would write them: in their table, indented like its keys.
func TestPlaces(t *testing.T) {
	changed, err := set(t, "version = 2 # two\n\n[plugins]\n\t[plugins.\"io.x\".containerd]\n"+
		"\t\tsnapshotter = \"a\" # why\n\n[debug]\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"#|version = 2 # two\nversion = 3\n",
		"#|\t\tsnapshotter = \"a\" # why\n\t\tsnapshotter = 'lighter'\n\t\tannotate = false\n# <<<",
		"[debug]\n# >>>", "[proxy.lighter]\n  address = '/run/l.sock'\n  capabilities = ['rebase']\n" +
			"[proxy.lighter.exports]\n  root = '/var/lib/l'\n[[plugins.'io.t'.unpack]]\n  platform = 'linux'\n"} {
		if !strings.Contains(changed, want) {
			t.Errorf("%q is not in\n%s", want, changed)
		}
	}
}

// What cannot be edited line by line is refused, with its line.
func TestRefusals(t *testing.T) {
	for text, want := range map[string]string{
		"a = 1\nproxy = { lighter = { address = 'x' } }\n": "line 2: proxy is not a table",
		"[proxy]\nlighter = { address = 'x' }\n":           "line 2: proxy.lighter is not a table",
		"[[proxy]]\na = 1\n":                               "line 1: proxy is an array of tables",
		"[proxy.lighter.address]\na = 1\n":                 "line 1: proxy.lighter.address makes a table",
		"proxy.lighter.address.x = 1\n":                    "line 1: proxy.lighter.address.x makes a table",
		"\n[plugins]\n'io.t' = {unpack = []}\n":            "line 3: plugins.'io.t' is not an array",
		"[plugins.'io.t'.unpack]\na = 1\n":                 "line 1: plugins.'io.t'.unpack is a table",
		"a = = 1\n":                                        "line 1",
		"a = 1\na = 2\n":                                   "line 2",
		"a = 1\n[b\n":                                      "line 2",
		"a = '\x00'\n":                                     "line 1",
	} {
		if _, err := set(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error with %q", text, err, want)
		}
	}
}

func FuzzSettings(f *testing.F) {
	for _, text := range documents {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if marker.In([]byte(text)) {
			return
		}
		if _, err := set(t, text); err != nil {
			return
		}
		checkSet(t, text)
	})
}
