package containerd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"lighter/install"
	"lighter/install/marks"
	"lighter/install/tomlfile"
	"lighter/install/tomltext"
	"lighter/proc"
)

// ownFile is the name of our file among the imported ones. The number lets an administrator's file
// with a higher one override it.
const ownFile = "90-lighter.toml"

// layout is the configuration of a containerd: the main file, and the files that it imports.
type layout struct {
	main     config
	imported []config // in the order in which containerd merges them
	own      string   // the path of our imported file, if the main file's imports match one
	ownIsNew bool     // the directory of own does not exist
	merged   bool     // the owner merges our file, key by key, whatever containerd does
	template *template
}

// config is one file of the configuration.
type config struct {
	tomlfile.File
	name string // its path as containerd knows it, perhaps with symbolic links
}

// maxImports bounds the number of imported files.
const maxImports = 1024

// read reads the configuration of a containerd.
func (t *Target) read(f found) (*layout, error) {
	main, err := readConfig(f.Config)
	if err != nil {
		return nil, err
	}
	l := &layout{main: main}
	if t.Owner.Merged != "" {
		return l, l.readMerged(t.Owner.Merged)
	}
	seen := map[string]bool{main.Path: true}
	for pending := []config{main}; len(pending) > 0; pending = pending[1:] {
		paths, err := importsOf(pending[0])
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			c, err := readConfig(path)
			if err != nil {
				return nil, fmt.Errorf("read the imported file %s: %w", path, err)
			}
			if seen[c.Path] {
				continue
			}
			seen[c.Path] = true
			if len(seen) > maxImports {
				return nil, fmt.Errorf("%s imports more than %d files", main.Path, maxImports)
			}
			l.imported, pending = append(l.imported, c), append(pending, c)
		}
	}
	if f.number >= 2_00 {
		l.findOwn()
	}
	if t.Owner.Templates != "" && l.own == "" {
		l.template, err = t.readTemplate(f)
	}
	return l, err
}

// readConfig reads one file.
func readConfig(path string) (config, error) {
	file, err := tomlfile.Read(path, marker)
	return config{File: file, name: path}, err
}

// patterns returns the imports of a file, as absolute paths.
func (c config) patterns() (patterns []string) {
	value, _ := c.Doc.Lookup("imports")
	list, _ := value.([]any)
	for _, item := range list {
		pattern, ok := item.(string)
		if !ok {
			continue
		}
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(c.name), pattern)
		}
		patterns = append(patterns, filepath.Clean(pattern))
	}
	return patterns
}

// importsOf returns the files that a file imports, as containerd finds them.
func importsOf(c config) (paths []string, err error) {
	for _, pattern := range c.patterns() {
		if !strings.Contains(pattern, "*") {
			paths = append(paths, pattern)
			continue
		}
		matches, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("%s: imports %s: %w", c.Path, pattern, err)
		}
		paths = append(paths, matches...)
	}
	return paths, nil
}

// findOwn finds the first of the main file's imports that would match our file.
func (l *layout) findOwn() {
	for _, pattern := range l.main.patterns() {
		own := filepath.Join(filepath.Dir(pattern), ownFile)
		if ok, _ := filepath.Match(pattern, own); !ok || strings.ContainsAny(filepath.Dir(own), "*?[") {
			continue
		}
		l.own, l.ownIsNew = own, install.Missing(filepath.Dir(own))
		if dir, err := filepath.EvalSymlinks(filepath.Dir(own)); err == nil {
			l.own = filepath.Join(dir, ownFile)
		}
		return
	}
}

// docs returns all files without our lines.
func (l *layout) docs() []*tomltext.Document {
	docs := []*tomltext.Document{l.main.Doc}
	for _, c := range l.imported {
		docs = append(docs, c.Doc)
	}
	return docs
}

// proxy reports whether the configuration without our lines has the node's proxy plugin.
func (l *layout) proxy() bool {
	return slices.ContainsFunc(l.docs(), func(d *tomltext.Document) bool {
		_, ok := d.Lookup(proxyTable...)
		return ok
	})
}

// wanted returns what the configuration needs.
func (l *layout) wanted(t *Target, f found) wanted {
	docs := l.docs()
	w := wanted{number: f.number, format: l.format(), address: t.Node.Address, root: t.Node.Root,
		capabilities: capabilitiesOf(docs, t.Node.RemapIDs), unpack: unpackOf(docs, f.number, t.Differ),
		local: pullsLocally(docs), discards: criHas(docs, isTrue, "discard_unpacked_layers")}
	w.cri = t.CRI || criHas(docs, func(value any) bool { return value == snapshotter }, "snapshotter")
	if t.Differ {
		w.wantDiffer(docs, f.Version)
	}
	w.criTable = []string{"plugins", imagesPlugin}
	_, runtimes := l.main.Doc.Lookup("plugins", criPlugin, "containerd", "runtimes")
	if f.number < 2_00 || w.format < 3 && w.format > 0 && runtimes {
		// containerd 2.x converts the old section if it has runtimes. That overrides the new one.
		w.criTable = []string{"plugins", criPlugin, "containerd"}
	}
	return w
}

// format returns the version of the main file. A file with keys and without a version has version
// 1. A file without keys has none yet.
func (l *layout) format() int {
	if version, ok := l.main.Doc.Lookup("version"); ok {
		n, _ := version.(int64)
		return int(n)
	}
	if keys, _ := l.main.Doc.Lookup(); len(keys.(map[string]any)) == 0 {
		return 0
	}
	return 1
}

// install returns the changes that give the configuration what it needs.
func (l *layout) install(w wanted) ([]install.Change, error) {
	if w.format == 1 && w.cri {
		return nil, &install.Refused{Path: l.main.Path,
			Why: "it has version 1 of the format: convert it first (containerd config migrate)"}
	}
	if w.noDiffer != "" {
		return nil, &install.Refused{Path: l.main.Path, Why: w.noDiffer}
	}
	settings, elements := w.settings(), w.elements()
	if l.template != nil {
		return l.template.install(settings, elements), nil
	}
	inPlace := l.own == "" || !l.merged && (w.cri && !slices.Equal(w.criTable, []string{"plugins", imagesPlugin}) ||
		w.differ && l.main.listsDiffers())
	main, own := l.main.Undone.Text, []byte(nil)
	switch text, err := l.main.With(settings, elements); {
	case l.satisfies(settings, elements):
	case !inPlace:
		if err := l.overridden(settings, l.after()); err != nil {
			return nil, err
		}
		own = l.ownText(settings, elements)
	case err != nil:
		return nil, err
	case l.generated():
		return nil, &install.Refused{Path: l.main.Path, Why: "another program writes it, as its first lines say: " +
			"use that program's own template or directory"}
	default:
		if err := l.overridden(settings, l.imported); err != nil {
			return nil, err
		}
		main = text
	}
	return l.changes(main, own), nil
}

// listsDiffers reports whether a file lists containerd's differs. containerd appends the list of an
// imported file to it, so the node's differ would not be the first one.
func (c config) listsDiffers() bool {
	_, ok := c.Doc.Lookup(append(slices.Clone(diffTable), "default")...)
	return ok
}

// satisfies reports whether the user has made all settings, in whichever file.
func (l *layout) satisfies(settings []tomltext.Setting, elements []tomltext.Element) bool {
	return len(elements) == 0 && !slices.ContainsFunc(settings, func(s tomltext.Setting) bool {
		return !slices.ContainsFunc(l.docs(), func(d *tomltext.Document) bool { return d.Has(s) })
	})
}

// ownText returns the text of our imported file.
func (l *layout) ownText(settings []tomltext.Setting, elements []tomltext.Element) []byte {
	if version, ok := l.main.Doc.Lookup("version"); ok { // the files must not have different versions
		settings = append([]tomltext.Setting{{Key: "version", Value: version}}, settings...)
	}
	origin := marks.Nothing
	if at := l.ownNow(); l.ownIsNew || at != nil && at.Undone.Origin == marks.NothingIn {
		origin = marks.NothingIn
	}
	base := []byte(nil)
	if at := l.ownNow(); at != nil {
		base = at.Undone.Text
		if at.Undone.Origin == marks.File {
			origin = marks.File
		}
	}
	return marker.Apply(base, origin, []marks.Edit{{At: len(base), Until: len(base),
		Lines: tomltext.Lines(settings, elements)}})
}

// ownNow returns our imported file as it is now, or nil.
func (l *layout) ownNow() *config {
	for i := range l.imported {
		if l.imported[i].Path == l.own {
			return &l.imported[i]
		}
	}
	return nil
}

// after returns the imported files that containerd merges after ours.
func (l *layout) after() []config {
	i := slices.IndexFunc(l.imported, func(c config) bool { return c.Path == l.own })
	if i >= 0 {
		return l.imported[i+1:]
	}
	var after []config
	for _, c := range l.imported {
		if filepath.Dir(c.Path) != filepath.Dir(l.own) || filepath.Base(c.Path) > ownFile {
			after = append(after, c)
		}
	}
	return after
}

// overridden returns an error if one of the imported files overrides a setting. A file that has the
// proxy plugin replaces all of it. Before containerd 2.0, that is so for each plugin.
func (l *layout) overridden(settings []tomltext.Setting, imported []config) error {
	for _, c := range imported {
		for _, s := range settings {
			whole := s.Table
			if len(whole) > 2 {
				whole = whole[:2]
			}
			_, has := c.Doc.Lookup(whole...)
			if slices.Equal(whole, []string{"plugins", imagesPlugin}) {
				_, has = c.Doc.Lookup(append(slices.Clone(s.Table), s.Key)...)
			}
			if len(s.Table) > 0 && has && !c.Doc.Has(s) {
				return &install.Refused{Path: l.main.Path, Why: fmt.Sprintf(
					"the imported file %s overrides %s in [%s]", c.Path, s.Key, strings.Join(s.Table, "."))}
			}
		}
	}
	return nil
}

// generatedPattern is what programs write at the beginning of files that they write again.
const generatedPattern = "DO NOT EDIT"

// generated reports whether another program says at the beginning of the main file that it writes
// the file.
func (l *layout) generated() bool {
	for line := range bytes.Lines(l.main.Undone.Text) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' {
			return false
		}
		if bytes.Contains(bytes.ToUpper(line), []byte(generatedPattern)) {
			return true
		}
	}
	return false
}

// changes returns the changes that give the main file and our imported file their new texts. Other
// files lose lines of ours.
func (l *layout) changes(main, own []byte) []install.Change {
	changes := l.main.Change(main)
	if own != nil && l.ownNow() == nil {
		changes = append(changes, install.Change{Path: l.own, New: own, Directory: l.ownIsNew})
	}
	for _, c := range l.imported {
		text := c.Undone.Text
		if c.Path == l.own && own != nil {
			text = own
		}
		changes = append(changes, c.Change(text)...)
	}
	return changes
}

// uninstall returns the changes that take our lines out of all files.
func (l *layout) uninstall() []install.Change {
	if l.template != nil {
		return l.template.uninstall()
	}
	return l.changes(l.main.Undone.Text, nil)
}

// newerThan reports whether a file of the configuration was changed after a process had started.
func (l *layout) newerThan(pid int) bool {
	files := []string{l.main.Path}
	for _, c := range l.imported {
		files = append(files, c.Path)
	}
	if l.template != nil {
		files = append(files, l.template.Path, l.template.settings.Path)
	}
	return proc.StartedBefore(pid, files...)
}

// candidate writes a main file that containerd can parse in order to check the staged files. It
// returns the file's path, and a function that removes it. The file imports all files by the paths
// that they have now, because it is in another directory than the main file, and our imported file
// is not in its place yet.
func (l *layout) candidate(staged map[string]string) (path string, remove func(), err error) {
	text := l.main.Bytes
	if path, ok := staged[l.main.Path]; ok {
		if text, err = os.ReadFile(path); err != nil {
			return "", nil, err
		}
	}
	imports := []any{}
	for _, c := range l.imported {
		if c.Path != l.own {
			imports = append(imports, c.Path)
		}
	}
	if own, ok := staged[l.own]; ok {
		imports = append(imports, own)
	}
	doc, err := tomltext.Parse(text)
	if err != nil {
		return "", nil, err
	}
	if len(imports) > 0 {
		edits, err := doc.Edits([]tomltext.Setting{{Key: "imports", Value: imports}}, nil)
		if err != nil {
			return "", nil, err
		}
		text = marker.Apply(text, marks.File, edits)
	}
	file, err := os.CreateTemp("", "lighter-install-*.toml")
	if err != nil {
		return "", nil, err
	}
	_, err = file.Write(text)
	return file.Name(), func() { _ = os.Remove(file.Name()) }, errors.Join(err, file.Close())
}
