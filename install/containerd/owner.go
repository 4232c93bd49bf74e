package containerd

import (
	"bytes"
	"path/filepath"

	"lighter/install"
	"lighter/install/marks"
	"lighter/install/tomltext"
)

// Owner is a program that runs containerd and writes its configuration at each start, so that the
// configuration cannot be edited. The zero value: the administrator owns the configuration.
type Owner struct {
	Name string
	// Merged is the directory of files that the owner merges into the configuration key by key
	// (k0s).
	Merged string
	// Templates is the directory of the templates of the configuration (k3s, RKE2). They are used
	// only if the configuration imports no directory. A template can only add tables to those of
	// the owner.
	Templates string
	// Settings is a file of the owner's own settings. It gets the setting of the kubelet's
	// snapshotter if templates are used.
	Settings string
}

// readMerged reads the files that the owner merges into the configuration. The main file, and what
// it imports, are made of them.
func (l *layout) readMerged(dir string) error {
	l.merged, l.own, l.ownIsNew = true, filepath.Join(dir, ownFile), install.Missing(dir)
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		l.own = filepath.Join(real, ownFile)
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.toml"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		c, err := readConfig(path)
		if err != nil {
			return err
		}
		l.imported = append(l.imported, c)
	}
	return nil
}

// template is the template from which an owner makes the configuration, and its settings.
type template struct {
	install.Text
	undone   marks.Undone
	settings install.Text
	cri      bool // the kubelet's pulls use the node
}

// base is the line of a template that stands for what the owner writes without a template.
const base = "{{ template \"base\" . }}\n"

// snapshotterSetting is the owner's setting of the kubelet's snapshotter.
var snapshotterSetting = []byte("# Written by lighter install containerd, whose uninstall removes this file.\n" +
	"snapshotter: " + snapshotter + "\n")

// readTemplate reads the template that the owner uses, or would use.
func (t *Target) readTemplate(f found) (*template, error) {
	names := []string{"config.toml.tmpl"}
	if f.number >= 2_00 {
		names = []string{"config-v3.toml.tmpl", "config.toml.tmpl"}
	}
	path := filepath.Join(t.Owner.Templates, names[0])
	for _, name := range names {
		if other := filepath.Join(t.Owner.Templates, name); !install.Missing(other) {
			path = other
			break
		}
	}
	text, err := install.Read(path)
	if err != nil {
		return nil, err
	}
	undone, err := marker.Undo(text.Bytes)
	if err != nil {
		return nil, &install.Refused{Path: text.Path, Why: err.Error()}
	}
	settings, err := install.Read(t.Owner.Settings)
	return &template{Text: text, undone: undone, settings: settings, cri: t.CRI}, err
}

// install returns the changes that give the template our tables, at its end.
func (t *template) install(settings []tomltext.Setting, elements []tomltext.Element) []install.Change {
	text, origin := t.undone.Text, t.undone.Origin
	if t.Bytes == nil {
		text, origin = []byte(base), marks.Nothing
	}
	tables := settings[:0:0]
	for _, s := range settings {
		if len(s.Table) > 0 { // the owner's text has the version
			tables = append(tables, s)
		}
	}
	text = marker.Apply(text, origin, []marks.Edit{{At: len(text), Until: len(text),
		Lines: tomltext.Lines(tables, elements)}})
	changes := t.To(text)
	if !t.cri {
		return append(changes, t.removeSettings()...)
	}
	setting := t.settings.To(snapshotterSetting)
	for i := range setting {
		setting[i].Directory = install.Missing(filepath.Dir(t.settings.Path))
	}
	return append(changes, setting...)
}

// uninstall returns the changes that take our lines out of the template.
func (t *template) uninstall() []install.Change {
	text := t.undone.Text
	if t.Bytes == nil || t.undone.Origin == marks.Nothing && bytes.Equal(text, []byte(base)) {
		text = nil
	}
	return append(t.To(text), t.removeSettings()...)
}

// removeSettings returns the changes that remove the owner's setting, if it is ours.
func (t *template) removeSettings() []install.Change {
	if !bytes.Equal(t.settings.Bytes, snapshotterSetting) {
		return nil
	}
	changes := t.settings.To(nil)
	changes[0].Directory = true
	return changes
}
