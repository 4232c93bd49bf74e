package docker

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"lighter/install"
	"lighter/install/jsontext"
	"lighter/node/doctor"
)

// config is Docker's configuration.
type config struct {
	file, record install.Text
	was          record // nothing: there is no record
	undone       []byte // the text without what Install has set; nil: no file
}

// record is the file that says how a configuration is undone.
type record struct {
	Comment string `json:"comment"`
	// Created says that there was no file, or no directory for it.
	Created created `json:"created,omitempty"`
	SHA256  string  `json:"sha256"` // of the configuration as it was written
	Steps   []step  `json:"steps"`
}

type created string

const (
	createdFile      created = "file"
	createdDirectory created = "directory"
)

// step is one change of a configuration.
type step struct {
	Key    []string        `json:"key"`    // empty: an empty text became an object
	Value  json.RawMessage `json:"value"`  // of the key
	Before json.RawMessage `json:"before"` // its value before; null: none
	Edit   jsontext.Edit   `json:"edit"`
}

// comment explains the record to somebody who finds it.
const comment = "lighter install docker wrote this file. lighter uninstall docker needs it, and removes it."

// setting is a key that the configuration shall have.
type setting struct {
	key   []string
	value json.RawMessage
	flags []string // the flags of dockerd for the same setting
	fits  string   // the value of such a flag that is right
}

// settings are what Docker needs. With the feature alone, a Docker that has used another storage
// driver before would keep it; the storage driver alone means a snapshotter only since version 29.
var settings = []setting{
	{[]string{"features", "containerd-snapshotter"}, json.RawMessage("true"), []string{"feature"},
		"containerd-snapshotter=true"},
	{[]string{"storage-driver"}, json.RawMessage(`"` + driver + `"`), []string{"storage-driver", "s"}, driver},
}

// withMirror returns the settings for a hub that Docker asks before Docker Hub, and before the
// mirrors that a configuration has already.
func (c config) withMirror(hub string) ([]setting, error) {
	if hub == "" {
		return settings, nil
	}
	all := []string{hub}
	if len(bytes.TrimSpace(c.undone)) > 0 {
		var before []string
		raw, err := jsontext.Lookup(c.undone, mirrorsKey)
		if err == nil && raw != nil {
			err = json.Unmarshal(raw, &before)
		}
		if err != nil {
			return nil, c.refuse(mirrorsKey + ": " + err.Error())
		}
		all = append(all, slices.DeleteFunc(before, func(m string) bool { return strings.TrimRight(m, "/") == hub })...)
	}
	value, err := json.Marshal(all)
	return append(slices.Clone(settings), setting{[]string{mirrorsKey}, value, []string{"registry-mirror"}, hub}), err
}

const mirrorsKey = "registry-mirrors"

// lackingIn returns the settings that the arguments of dockerd lack, and an error if an argument is
// in the way: dockerd refuses to start with a setting that is also in the file.
func lackingIn(args []string, settings []setting) (lacking []setting, err error) {
	for _, s := range settings {
		value, given := doctor.Flag(args, s.flags...)
		switch {
		case !given:
			lacking = append(lacking, s)
		case strings.TrimSuffix(value, "=true") != strings.TrimSuffix(s.fits, "=true"):
			return nil, fmt.Errorf("dockerd is started with --%s=%s, and does not start if its configuration has %s, "+
				"too: take the flag out of the service (systemctl edit --full docker), and run this again", s.flags[0],
				value, s.key[0])
		}
	}
	return lacking, nil
}

// read reads a configuration, and the record about it.
func read(path string) (c config, err error) {
	if c.file, err = install.Read(path); err != nil {
		return c, err
	}
	if c.record, err = install.Read(recordOf(c.file.Path)); err != nil {
		return c, err
	}
	if text := c.file.Bytes; len(bytes.TrimSpace(text)) > 0 {
		if _, err := jsontext.Lookup(text, "storage-driver"); err != nil {
			return c, c.refuse("it is no valid JSON: " + err.Error())
		}
	}
	if c.record.Bytes != nil {
		if err := json.Unmarshal(c.record.Bytes, &c.was); err != nil {
			return c, &install.Refused{Path: c.record.Path, Why: "it is no record of lighter install: " + err.Error()}
		}
	}
	c.undone, err = c.undo()
	return c, err
}

// refuse returns an error with the lines that the user may insert by hand.
func (c config) refuse(why string) error {
	return &install.Refused{Path: c.file.Path, Why: why,
		Lines: "\"features\": {\"containerd-snapshotter\": true},\n\"storage-driver\": \"" + driver + "\"\n"}
}

func digest(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }

// undo returns the text without what the record says was set.
func (c config) undo() ([]byte, error) {
	text := c.file.Bytes
	if text == nil {
		return nil, nil
	}
	unchanged := digest(text) == c.was.SHA256
	for i := len(c.was.Steps) - 1; i >= 0; i-- {
		s := c.was.Steps[i]
		edit := s.Edit.Inverse()
		if !unchanged {
			var err error
			if edit, err = s.back(text); err != nil {
				return nil, c.refuse(err.Error())
			}
		}
		if !edit.Fits(text) {
			return nil, &install.Refused{Path: c.record.Path, Why: "it does not fit to " + c.file.Path +
				": remove it, and undo the changes by hand"}
		}
		text = edit.Apply(text)
	}
	if c.was.Created == "" {
		return text, nil
	}
	empty, err := jsontext.Empty(text)
	if empty {
		return nil, nil
	}
	return text, err
}

// back returns the edit that restores the value of a key in a text that somebody has changed, if
// the key still has our value.
func (s step) back(text []byte) (jsontext.Edit, error) {
	if len(s.Key) == 0 {
		return jsontext.Edit{}, nil
	}
	now, err := jsontext.Lookup(text, s.Key...)
	switch {
	case err != nil || !bytes.Equal(now, s.Value):
		return jsontext.Edit{}, err
	case s.Before != nil && string(s.Before) != "null":
		return jsontext.Set(text, s.Before, s.Key...)
	case strings.Contains(s.Edit.New, `"`+s.Key[0]+`"`) && len(s.Key) > 1: // the outer object was new, too
		return withoutOuter(text, s.Key)
	}
	return jsontext.Remove(text, s.Key...)
}

// withoutOuter returns the edit that removes a key, or the object that it is in if there is nothing
// else in it.
func withoutOuter(text []byte, key []string) (jsontext.Edit, error) {
	inner, err := jsontext.Lookup(text, key[:len(key)-1]...)
	if err != nil {
		return jsontext.Edit{}, err
	}
	edit, err := jsontext.Remove(inner, key[len(key)-1])
	if err != nil {
		return edit, err
	}
	if empty, err := jsontext.Empty(edit.Apply(inner)); err == nil && empty {
		key = key[:len(key)-1]
	}
	return jsontext.Remove(text, key...)
}

// text returns the string that a key of the configuration has, or "".
func (c config) text(key string) (value string) {
	raw, err := jsontext.Lookup(c.file.Bytes, key)
	if err == nil {
		_ = json.Unmarshal(raw, &value) // if it is no string, dockerd refuses it
	}
	return value
}

// hasDriver reports whether a text has our storage driver.
func (c config) hasDriver(text []byte) bool {
	value, err := jsontext.Lookup(text, "storage-driver")
	return err == nil && string(value) == `"`+driver+`"`
}

// install returns the changes that give the configuration its settings.
func (c config) install(lacking []setting, err error) ([]install.Change, error) {
	if err != nil {
		return nil, err
	}
	if has, err := hasAll(c.file.Bytes, lacking); has && c.wrote(lacking) || err != nil {
		return nil, err
	}
	r := record{Comment: comment, Steps: []step{}}
	text := c.undone
	directory := install.Missing(filepath.Dir(c.file.Path))
	switch {
	case text != nil && len(bytes.TrimSpace(text)) == 0:
		edit := jsontext.Edit{Old: string(text), New: "{}\n"}
		r.Steps, text = append(r.Steps, step{Edit: edit}), edit.Apply(text)
	case text == nil:
		r.Created, text = createdFile, []byte("{}\n")
		if directory || c.was.Created == createdDirectory {
			r.Created = createdDirectory
		}
	}
	for _, s := range lacking {
		before, err := jsontext.Lookup(text, s.key...)
		if err == nil && bytes.Equal(before, s.value) {
			continue
		}
		edit, err2 := jsontext.Set(text, s.value, s.key...)
		if err = errors.Join(err, err2); err != nil {
			return nil, c.refuse(err.Error())
		}
		r.Steps = append(r.Steps, step{Key: s.key, Value: s.value, Before: before, Edit: edit})
		text = edit.Apply(text)
	}
	r.SHA256 = digest(text)
	recorded, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return nil, err
	}
	// The record first: without it, nothing could be undone.
	changes := append(c.record.To(append(recorded, '\n')), c.file.To(text)...)
	return withDirectory(changes, directory), nil
}

// wrote reports whether a previous run has set no other keys than these.
func (c config) wrote(settings []setting) bool {
	return !slices.ContainsFunc(c.was.Steps, func(of step) bool {
		return len(of.Key) > 0 &&
			!slices.ContainsFunc(settings, func(s setting) bool { return slices.Equal(s.key, of.Key) })
	})
}

// hasAll reports whether a text has all settings.
func hasAll(text []byte, all []setting) (bool, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return len(all) == 0, nil
	}
	for _, s := range all {
		value, err := jsontext.Lookup(text, s.key...)
		if err != nil || !bytes.Equal(value, s.value) {
			return false, nil // Set says what is wrong with the text
		}
	}
	return true, nil
}

// uninstall returns the changes that take out what Install has set.
func (c config) uninstall() []install.Change {
	if c.record.Bytes == nil {
		return nil
	}
	changes := append(c.file.To(c.undone), c.record.To(nil)...)
	return withDirectory(changes, c.was.Created == createdDirectory)
}

// withDirectory says of changes whether the directory belongs to them.
func withDirectory(changes []install.Change, directory bool) []install.Change {
	for i := range changes {
		changes[i].Directory = directory
	}
	return changes
}
