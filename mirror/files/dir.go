// Package files has the files of a mirror: a directory, or another store, with the objects that
// nodes need, below the paths of a hub's URLs.
//
// A file has its name only when it is complete and durable. The package does not decide which files
// a mirror has, and in which order they come: files that others name come first. It does not verify
// what it writes, except for units (Wanted.Check).
package files

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"lighter/format/index"
	"lighter/wire"
)

// Dir is a directory with the objects that a hub serves, under the paths of their URLs. A file
// Has its name only when it is complete and synced. Nothing is read or written outside of the
// directory, even if a path or a link leads out of it.
type Dir struct {
	dir  string
	root *os.Root
}

// aside is the directory in which files are written before they get their names.
const aside = ".new"

// fileOf returns the path, below the directory, of a URL's file.
func fileOf(url string) string { return filepath.FromSlash(strings.TrimPrefix(url, "/")) }

// Open opens a directory, which is made if it does not exist. It locks the directory against
// other writers until close is called, and removes unfinished files of an earlier run.
func Open(dir string) (f Dir, close func(), err error) {
	f.dir = dir
	if err = os.MkdirAll(dir, 0o755); err == nil {
		f.root, err = os.OpenRoot(dir)
	}
	if err != nil {
		return f, nil, fmt.Errorf("write to the mirror: %w", err)
	}
	locked, err := f.root.Open(".")
	if err != nil {
		return f, nil, errors.Join(fmt.Errorf("write to the mirror: %w", err), f.root.Close())
	}
	if unix.Flock(int(locked.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return f, nil, errors.Join(fmt.Errorf("%s is in use by another lighter mirror", dir),
			locked.Close(), f.root.Close())
	}
	close = func() {
		_ = f.root.RemoveAll(aside) // the next run removes what is left
		_ = errors.Join(locked.Close(), f.root.Close())
	}
	if err := f.root.RemoveAll(aside); err != nil {
		close()
		return f, nil, fmt.Errorf("write to the mirror: %w", err)
	}
	return f, close, nil
}

// Has reports whether there is a file.
func (f Dir) Has(url string) bool {
	_, err := f.root.Stat(fileOf(url))
	return err == nil
}

// Pending is a file that does not have its name yet.
type Pending struct {
	*os.File
	name  string // in aside
	files Dir
	done  bool
}

// Create opens a new file for reading and writing. Publish or Discard closes it.
func (f Dir) Create() (*Pending, error) {
	name := filepath.Join(aside, rand.Text())
	err := f.root.MkdirAll(aside, 0o755)
	var file *os.File
	if err == nil {
		file, err = f.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("write to the mirror: %w", err)
	}
	return &Pending{File: file, name: name, files: f}, nil
}

// Publish syncs the file, makes it readable for all users and gives it the name of a URL's file.
func (p *Pending) Publish(url string) error { return p.publishAs(fileOf(url), 0o644) }

func (p *Pending) publishAs(name string, mode os.FileMode) error {
	root := p.files.root
	p.done = true
	err := errors.Join(p.Chmod(mode), p.Sync(), p.Close())
	if err == nil {
		err = root.MkdirAll(filepath.Dir(name), 0o755)
	}
	if err == nil {
		err = root.Rename(p.name, name)
	}
	if err != nil {
		return fmt.Errorf("write to the mirror: %w", errors.Join(err, root.Remove(p.name)))
	}
	return p.files.syncDir(filepath.Dir(name))
}

// Discard removes the file unless it was published.
func (p *Pending) Discard() {
	if !p.done {
		_ = errors.Join(p.Close(), p.files.root.Remove(p.name)) // Open removes what is left
	}
}

func (f Dir) syncDir(name string) error {
	dir, err := f.root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Write publishes a file, unless there is one with the same contents.
func (f Dir) Write(url string, b []byte) error {
	if old, err := f.root.ReadFile(fileOf(url)); err == nil && bytes.Equal(old, b) {
		return nil
	}
	file, err := f.Create()
	if err != nil {
		return err
	}
	defer file.Discard()
	if _, err := file.Write(b); err != nil {
		return fmt.Errorf("write to the mirror: %w", err)
	}
	return file.Publish(url)
}

// WriteJSON writes a value as Write does.
func (f Dir) WriteJSON(url string, value any) error {
	b, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return f.Write(url, append(b, '\n'))
}

// Keys returns the hub's keys that the mirror has, or nil.
func (f Dir) Keys(domain string) ([]ed25519.PublicKey, error) {
	name := fileOf(wire.KeyPath(domain))
	text, err := f.root.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var keys []ed25519.PublicKey
	if err == nil {
		keys, err = wire.ParseKeys(text)
	}
	if err != nil {
		return nil, fmt.Errorf("read the mirror's keys (%s): %w", filepath.Join(f.dir, name), err)
	}
	return keys, nil
}

// WriteKeys publishes the hub's keys.
func (f Dir) WriteKeys(domain string, keys []ed25519.PublicKey) error {
	var text []byte
	for _, key := range keys {
		text = append(text, index.FormatKey(key)+"\n"...)
	}
	return f.Write(wire.KeyPath(domain), text)
}

// AddChains adds the chains of an image, the lowest first, to the known ones, and publishes their
// answers with the chains above them. The answers of other chains do not change.
func (f Dir) AddChains(domain string, known map[string]wire.Link, links []wire.Link) error {
	for _, link := range links {
		if link.Statement == nil {
			link.Statement = known[link.Chain].Statement
		}
		known[link.Chain] = link
	}
	above := Above(known)
	// From the top down: if a crash interrupts this, the next run adds the missing answers.
	for _, link := range slices.Backward(links) {
		if err := f.WriteJSON(wire.ChainPath(domain, link.Chain), Answer(known[link.Chain], above)); err != nil {
			return err
		}
	}
	return nil
}

// Above returns the chains directly above each chain, of the known ones.
func Above(known map[string]wire.Link) map[string][]wire.Link {
	above := map[string][]wire.Link{}
	for _, chain := range slices.Sorted(maps.Keys(known)) {
		parent := known[chain].Parent
		above[parent] = append(above[parent], known[chain])
	}
	return above
}

// Answer returns a mirror's answer about a chain. Its field Complete is false, because the hub may
// have other images. above is the result of Above.
func Answer(link wire.Link, above map[string][]wire.Link) wire.Chain {
	return wire.Chain{Link: link, Above: chainsAbove(link.Chain, above)}
}

// chainsAbove lists the chains above a chain, the nearest first. directly maps each chain to the
// Chains directly above it.
func chainsAbove(chain string, directly map[string][]wire.Link) (all []wire.Link) {
	for level := []string{chain}; len(level) > 0 && len(all) < wire.MaxAbove; {
		var next []string
		for _, below := range level {
			for _, l := range directly[below] {
				all = append(all, l)
				next = append(next, l.Chain)
			}
		}
		level = next
	}
	return all[:min(len(all), wire.MaxAbove)]
}

// Chains reads the chains of the directory.
func (f Dir) Chains(domain string) (map[string]wire.Link, error) {
	known := map[string]wire.Link{}
	top := strings.TrimSuffix(fileOf(wire.ChainPath(domain, "")), "/")
	err := fs.WalkDir(f.root.FS(), top, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		var answer wire.Chain
		b, err := f.root.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(b, &answer)
		}
		if err != nil {
			return fmt.Errorf("read the mirror: %s, which may be removed: %w", filepath.Join(f.dir, name), err)
		}
		known[answer.Chain] = answer.Link
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return known, err
}
