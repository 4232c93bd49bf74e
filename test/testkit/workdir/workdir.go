// Package workdir finds the directory WORK, where test/setup puts the programs and images of the
// tests.
package workdir

import (
	"errors"
	"os"
	"path/filepath"
)

// Path returns the path of the directory WORK: $LIGHTER_WORK, or work/ in the module of the current
// directory. Its subdirectories tools/ and images/ have what the tests need.
func Path() (string, error) {
	if dir := os.Getenv("LIGHTER_WORK"); dir != "" {
		return filepath.Abs(dir)
	}
	module, err := Module()
	if err != nil {
		return "", err
	}
	return filepath.Join(module, "work"), nil
}

// Module returns the root directory of the module of the current directory.
func Module() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, stat := os.Stat(filepath.Join(dir, "go.mod")); stat == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			err = errors.New("find the module's go.mod: start the program in the repository, or set LIGHTER_WORK")
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}
