package durable

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// brokenSuffix is added to the name of a state file that could not be read.
const brokenSuffix = ".broken"

// StateFile describes the file of a State.
type StateFile struct {
	Path string
	Name string // the state's name in errors: "the list of …"
	// Broken ends the message about a file that could not be read: what this affects, and what the
	// user can do before the user removes the file.
	Broken string
}

// State keeps a value as JSON in a file, for the process's next start. Callers of Save exclude each
// other.
type State[T any] struct {
	file       StateFile
	leftovers  *Leftovers
	incomplete bool
}

// OpenState reads the file. If there is none, the value is zero. If the file cannot be read,
// OpenState renames it, and the value is zero, too. The renamed file is a leftover until the user
// has removed it, also after the next start.
func OpenState[T any](file StateFile, leftovers *Leftovers) (s *State[T], value T) {
	s = &State[T]{file: file, leftovers: leftovers}
	broken := file.Path + brokenSuffix
	text, err := os.ReadFile(file.Path)
	if err == nil {
		err = json.Unmarshal(text, &value)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		var none T
		s.incomplete, value = true, none
		leftovers.Note(file.Path, errors.Join(err, os.Rename(file.Path, broken)))
	}
	if _, err := os.Lstat(broken); err == nil {
		s.incomplete = true
		leftovers.Note(broken, fmt.Errorf("%s cannot be read: %s", file.Name, file.Broken))
	}
	return s, value
}

// Incomplete reports whether there is a file that could not be read. If so, earlier processes may
// have saved what the value does not have.
func (s *State[T]) Incomplete() bool { return s.incomplete }

// Save writes the file. If that fails, the file has its old contents, and is a leftover until the
// next Save that succeeds.
func (s *State[T]) Save(value T) error {
	text, err := json.Marshal(value)
	if err == nil {
		err = Replace(s.file.Path, text)
	}
	if err != nil {
		err = fmt.Errorf("save %s: %w", s.file.Name, err)
	}
	s.leftovers.Note(s.file.Path, err)
	return err
}
