package rootdir

import (
	"errors"
	"io/fs"
	"os"
)

// OpenScratch makes a file without a name in a scratch directory, which it makes if somebody has
// deleted it. The caller closes the file, which then is gone.
func OpenScratch(dir string) (*os.File, error) {
	const pattern = "file-*"
	file, err := os.CreateTemp(dir, pattern)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(dir, 0o700); err == nil {
			file, err = os.CreateTemp(dir, pattern)
		}
	}
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
