package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
)

// Read returns the bytes of a small file. The error wraps fs.ErrNotExist if there is no such file.
func (f Dir) Read(url string) ([]byte, error) {
	b, err := f.root.ReadFile(fileOf(url))
	if err != nil {
		return nil, fmt.Errorf("read the mirror: %w", err)
	}
	return b, nil
}

// WriteFrom publishes a file with the bytes of r. It replaces a file of that name.
func (f Dir) WriteFrom(ctx context.Context, url string, r io.Reader) error {
	file, err := f.Create()
	if err != nil {
		return err
	}
	defer file.Discard()
	if _, err := io.Copy(file, r); err != nil {
		return fmt.Errorf("write to the mirror: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return file.Publish(url)
}

// Names returns the names of the files below a path: none if there is no such directory.
func (f Dir) Names(url string) (names []string, err error) {
	entries, err := fs.ReadDir(f.root.FS(), fileOf(url))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the mirror: %w", err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, nil
}

// Remove removes files, and the directories that are empty then. It is no error if a file does not
// exist.
func (f Dir) Remove(ctx context.Context, urls []string) error {
	dirs := map[string]bool{}
	for _, url := range urls {
		if err := ctx.Err(); err != nil {
			return err
		}
		name := fileOf(url)
		if err := f.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove from the mirror: %w", err)
		}
		dirs[filepath.Dir(name)] = true
	}
	for dir := range dirs {
		err := f.root.Remove(dir) // fails if there are other files
		if err == nil {
			dir = filepath.Dir(dir)
		}
		if err := f.syncDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove from the mirror: %w", err)
		}
	}
	return nil
}
