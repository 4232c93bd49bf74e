package registry

import (
	"net/url"

	"lighter/hub/registry/bucket"
)

// Storage says where a registry keeps its files: a driver of the library, with its parameters.
type Storage struct {
	driver     string
	parameters map[string]any
}

// Dir keeps the files in a directory.
func Dir(dir string) Storage {
	return Storage{"filesystem", map[string]any{"rootdirectory": dir, "maxthreads": fileThreads}}
}

// S3 keeps the files in a bucket, below registry/. The keys of package objects have other prefixes.
func S3(u *url.URL) Storage { return Storage{bucket.Name, map[string]any{"url": u.String()}} }
