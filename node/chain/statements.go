package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"lighter/format/chunk"
	"lighter/format/index"
)

// path returns where a chain's statement is kept, or "" for what is not a
// chainID.
func (r *Resolver) path(chain string) string {
	hex, ok := strings.CutPrefix(chain, "sha256:")
	if _, err := chunk.ParseID(hex); !ok || err != nil {
		return ""
	}
	return filepath.Join(r.dir, hex)
}

// statement reads the statement of a chain whose tree was once fetched. It was
// verified when it was saved, and lies where only root writes.
func (r *Resolver) statement(chain string) (*index.Statement, error) {
	path := r.path(chain)
	if path == "" {
		return nil, fmt.Errorf("%q is not a chainID", chain)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var s index.Statement
	if err := json.Unmarshal(b, &s); err != nil || s.Chain != chain || s.Format != index.Format {
		return nil, fmt.Errorf("the statement of chain %s on disk is damaged", chain)
	}
	return &s, nil
}

func (r *Resolver) save(s *index.Statement) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	r.held.Lock()
	defer r.held.Unlock()
	path := r.path(s.Chain)
	if path == "" {
		return fmt.Errorf("%q is not a chainID", s.Chain)
	}
	if err := replaceFile(path, b); err != nil {
		return fmt.Errorf("keep the statement of chain %s: %w", s.Chain, err)
	}
	return nil
}

// replaceFile publishes a small file: written, synced, renamed, the directory
// synced.
func replaceFile(path string, b []byte) error {
	fresh, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	defer os.Remove(fresh.Name()) // of no effect once it was renamed
	_, err = fresh.Write(b)
	if err := errors.Join(err, fresh.Sync(), fresh.Close()); err != nil {
		return err
	}
	if err := os.Rename(fresh.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// hold is somebody other than a snapshot who uses a chain.
type hold struct {
	holders int
	orphan  bool // no snapshot refers to the chain: it goes with the last holder
}

// Hold keeps a chain's tree from going until Drop is called as often.
func (r *Resolver) Hold(chain string) {
	r.held.Lock()
	defer r.held.Unlock()
	h := r.holds[chain]
	if h == nil {
		_, err := r.statement(chain)
		h = &hold{orphan: err != nil}
		r.holds[chain] = h
	}
	h.holders++
}

// Drop ends a Hold.
func (r *Resolver) Drop(chain string) {
	r.held.Lock()
	defer r.held.Unlock()
	h := r.holds[chain]
	if h == nil {
		return
	}
	if h.holders--; h.holders > 0 {
		return
	}
	delete(r.holds, chain)
	if h.orphan {
		r.release(chain)
	}
}

// wanted says that a snapshot refers to the chain.
func (r *Resolver) wanted(chain string) {
	r.held.Lock()
	defer r.held.Unlock()
	if h := r.holds[chain]; h != nil {
		h.orphan = false
	}
}

// Release says that no snapshot needs the chain any more. Its tree goes, unless
// somebody holds it or another chain has the same.
func (r *Resolver) Release(chain string) {
	r.held.Lock()
	defer r.held.Unlock()
	if h := r.holds[chain]; h != nil {
		h.orphan = true
		return
	}
	r.release(chain)
}

// Keep releases every chain but those named: what a crash left behind.
func (r *Resolver) Keep(chains []string) {
	for _, s := range r.Statements() {
		if !slices.Contains(chains, s.Chain) {
			r.Release(s.Chain)
		}
	}
}

func (r *Resolver) release(chain string) {
	s, err := r.statement(chain)
	if errors.Is(err, os.ErrNotExist) {
		return // only claimed, never fetched
	}
	if err != nil {
		r.log.Warn("release a chain", "chain", chain, "cause", err)
		return
	}
	if err := os.Remove(r.path(chain)); err != nil {
		r.log.Warn("release a chain", "chain", chain, "cause", err)
		return
	}
	if others := r.chainsOf(s.Tree); len(others) > 0 {
		return
	}
	if err := r.trees.Remove(s.Tree); err != nil {
		r.log.Warn("release a chain", "chain", chain, "cause", err)
	}
}

// chainsOf returns the chains on disk whose tree this is.
func (r *Resolver) chainsOf(tree chunk.ID) []string {
	var chains []string
	for _, s := range r.Statements() {
		if s.Tree == tree {
			chains = append(chains, s.Chain)
		}
	}
	return chains
}

// Statements lists the statements on disk.
func (r *Resolver) Statements() []index.Statement {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		r.log.Warn("list the chains", "cause", err)
		return nil
	}
	var all []index.Statement
	for _, entry := range entries {
		if s, err := r.statement("sha256:" + entry.Name()); err == nil {
			all = append(all, *s)
		}
	}
	return all
}

// Usage returns what releasing the chain would free on disk: bytes and files.
func (r *Resolver) Usage(chain string) (bytes, files int64) {
	s, err := r.statement(chain)
	if err != nil || len(r.chainsOf(s.Tree)) > 1 {
		return 0, 0
	}
	return r.trees.Size(s.Tree)
}
