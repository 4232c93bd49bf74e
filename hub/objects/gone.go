package objects

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/aws/smithy-go"
)

// If a bucket does not exist, or a directory's file system is not mounted, a request may get the
// same answer as one for a missing object. But then nothing is known about the objects, so the
// error is ErrUnavailable and not ErrNotFound.

// NameBucket returns an error that says what to do, if err is S3's answer that a bucket does not
// exist. It returns other errors as they are.
func NameBucket(name string, err error) error {
	if failed := smithy.APIError(nil); errors.As(err, &failed) && failed.ErrorCode() == "NoSuchBucket" {
		return noBucket(name)
	}
	return err
}

// noBucket is the error about a bucket that does not exist.
func noBucket(name string) error {
	return fmt.Errorf("there is no bucket %q, or its name is not valid: correct its URL, or make the bucket; "+
		"if the bucket had objects, restore them, or run lighter fsck --repair afterwards", name)
}

// makeKinds makes the directories of the kinds of objects. If they are missing later, the file
// system of the store's directory is not mounted.
func (s *Store) makeKinds() error {
	for _, kind := range kinds {
		if err := os.MkdirAll(filepath.Join(s.dir, kind), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// checkKind returns an error that wraps ErrUnavailable if the store is a directory that lacks the
// directory of a key's kind.
func (s *Store) checkKind(key string) error {
	if s.dir == "" {
		return nil
	}
	for _, kind := range kinds {
		if !strings.HasPrefix(key, kind) {
			continue
		}
		dir := filepath.Join(s.dir, kind)
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: directory %s is missing: mount the file system of the objects; "+
				"if they are lost, make the directory, and run lighter fsck --repair", ErrUnavailable, dir)
		}
	}
	return nil
}
