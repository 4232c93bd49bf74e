package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/rootdir"
)

// hubID returns the identity of the hub in a directory.
func hubID(ctx context.Context, root string) (id string, err error) {
	c, err := catalog.Attach(ctx, rootdir.Catalog(root))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return c.HubID(ctx)
}

// checkSameHub returns an error if dir has a backup of another hub than the one in root, whose
// identity is id. A backup that is older than the identities, or incomplete, must share a signing
// key with the hub.
func checkSameHub(id, root, dir string) error {
	earlier := Result{}
	text, err := os.ReadFile(filepath.Join(dir, backupFile))
	if errors.Is(err, fs.ErrNotExist) {
		text, err = []byte("{}"), nil
	}
	if err == nil {
		err = json.Unmarshal(text, &earlier)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", backupFile, err)
	}
	same := earlier.Hub == id
	if earlier.Hub == "" {
		same, err = sharesKey(root, dir)
	}
	if err != nil || same {
		return err
	}
	of := "another hub"
	if earlier.Root != "" {
		of = "the hub in " + earlier.Root
	}
	if !earlier.Time.IsZero() {
		of += ", made " + earlier.Time.Format(time.RFC3339)
	}
	return fmt.Errorf("the directory has a backup of %s, which is not this hub: "+
		"choose another directory for the backup", of)
}

// sharesKey reports whether the hub in root has a signing key that the backup in dir has, or the
// backup has none.
func sharesKey(root, dir string) (bool, error) {
	backups, err := os.ReadFile(rootdir.Key(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // the backup was killed before it had a catalog
	}
	hubs, hubsErr := os.ReadFile(rootdir.Key(root))
	if err := errors.Join(err, hubsErr); err != nil {
		return false, err
	}
	for one, rest := pem.Decode(hubs); one != nil; one, rest = pem.Decode(rest) {
		for other, rest := pem.Decode(backups); other != nil; other, rest = pem.Decode(rest) {
			if bytes.Equal(one.Bytes, other.Bytes) {
				return true, nil
			}
		}
	}
	return false, nil
}
