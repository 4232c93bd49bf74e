package hub

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// files is a directory that holds what a hub serves, below the paths of its
// URLs. A name is there with the whole of its contents, or not at all.
type files struct{ dir string }

// aside is where files are written before they get their names.
const aside = ".new"

func (f files) path(url string) string { return filepath.Join(f.dir, filepath.FromSlash(url)) }

// lock keeps others from writing, and removes what a crash left, until unlock is
// called.
func (f files) lock() (unlock func(), err error) {
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return nil, fmt.Errorf("write to the mirror: %w", err)
	}
	dir, err := os.Open(f.dir)
	if err != nil {
		return nil, fmt.Errorf("write to the mirror: %w", err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another lighter mirror writes to %s", f.dir), dir.Close())
	}
	if err := os.RemoveAll(f.path(aside)); err != nil {
		return nil, errors.Join(fmt.Errorf("write to the mirror: %w", err), dir.Close())
	}
	return func() {
		_ = os.RemoveAll(f.path(aside)) // or next time
		dir.Close()
	}, nil
}

func (f files) has(url string) bool {
	_, err := os.Stat(f.path(url))
	return err == nil
}

// pending is a file that has no name yet.
type pending struct {
	*os.File
	files files
	done  bool
}

// create begins a file. publish or discard ends it.
func (f files) create() (*pending, error) {
	dir := f.path(aside)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("write to the mirror: %w", err)
	}
	file, err := os.CreateTemp(dir, "")
	if err != nil {
		return nil, fmt.Errorf("write to the mirror: %w", err)
	}
	return &pending{File: file, files: f}, nil
}

// publish gives the file its name, once it is on the disk, for all to read.
func (p *pending) publish(url string) error {
	path := p.files.path(url)
	p.done = true
	err := errors.Join(p.Chmod(0o644), p.Sync(), p.Close())
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = os.Rename(p.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write to the mirror: %w", errors.Join(err, os.Remove(p.Name())))
	}
	return syncDir(filepath.Dir(path))
}

// discard removes the file unless it was published.
func (p *pending) discard() {
	if !p.done {
		_ = errors.Join(p.Close(), os.Remove(p.Name())) // it is nobody's
	}
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// write writes a file, unless it is there with the same contents.
func (f files) write(url string, b []byte) error {
	if old, err := os.ReadFile(f.path(url)); err == nil && bytes.Equal(old, b) {
		return nil
	}
	file, err := f.create()
	if err != nil {
		return err
	}
	defer file.discard()
	if _, err := file.Write(b); err != nil {
		return fmt.Errorf("write to the mirror: %w", err)
	}
	return file.publish(url)
}

func (f files) writeJSON(url string, value any) error {
	b, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return f.write(url, append(b, '\n'))
}

// addChains adds the chains of an image, the lowest first, to those that are
// known, and has each name those above it; no other has one more above it. No
// answer is complete: there may be other images.
func (f files) addChains(scope string, known map[string]Link, links []Link) error {
	for _, link := range links {
		if link.Statement == nil {
			link.Statement = known[link.Chain].Statement
		}
		known[link.Chain] = link
	}
	above := map[string][]Link{}
	for _, chain := range slices.Sorted(maps.Keys(known)) {
		parent := known[chain].Parent
		above[parent] = append(above[parent], known[chain])
	}
	// From the top: what a crash leaves out is known the next time.
	for _, link := range slices.Backward(links) {
		answer := Chain{Link: known[link.Chain], Above: chainsAbove(link.Chain, above)}
		if err := f.writeJSON(chainPath(scope, link.Chain), answer); err != nil {
			return err
		}
	}
	return nil
}

// chainsAbove lists what stands on a chain, nearest first, given what stands
// directly on each.
func chainsAbove(chain string, on map[string][]Link) (all []Link) {
	for level := []string{chain}; len(level) > 0 && len(all) < MaxAbove; {
		var next []string
		for _, below := range level {
			for _, l := range on[below] {
				all = append(all, l)
				next = append(next, l.Chain)
			}
		}
		level = next
	}
	return all[:min(len(all), MaxAbove)]
}

// chains reads the chains that are there.
func (f files) chains(scope string) (map[string]Link, error) {
	known := map[string]Link{}
	err := filepath.WalkDir(f.path(chainPath(scope, "")), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		var answer Chain
		b, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(b, &answer)
		}
		if err != nil {
			return fmt.Errorf("read the mirror (%s may be removed): %w", path, err)
		}
		known[answer.Chain] = answer.Link
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return known, err
}
