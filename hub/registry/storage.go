package registry

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"

	_ "github.com/distribution/distribution/v3/registry/storage/driver/s3-aws" // the driver "s3"
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

// s3Root is the prefix of the registry's objects in a bucket. Objects of package objects have others.
const s3Root = "/registry"

// S3 keeps the files in a bucket, below registry/. Its URL is that of gocloud.dev:
// s3://BUCKET?region=…&endpoint=…&use_path_style=true. Credentials come from the environment, as the
// SDK of AWS reads them.
func S3(bucket *url.URL) (Storage, error) {
	q := bucket.Query()
	for name := range q {
		if !slices.Contains([]string{"region", "endpoint", "use_path_style", "s3ForcePathStyle"}, name) {
			return Storage{}, fmt.Errorf("bucket %s: unknown parameter %s: there are region, endpoint and use_path_style",
				bucket.Redacted(), name)
		}
	}
	region := cmp.Or(q.Get("region"), os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"))
	parameters := map[string]any{"bucket": bucket.Host, "rootdirectory": s3Root, "region": region}
	if endpoint := q.Get("endpoint"); endpoint != "" {
		parameters["regionendpoint"] = endpoint
	}
	for name, key := range map[string]string{"use_path_style": "forcepathstyle", "s3ForcePathStyle": "forcepathstyle"} {
		if text := q.Get(name); text != "" {
			value, err := strconv.ParseBool(text)
			if err != nil {
				return Storage{}, fmt.Errorf("bucket %s: %s=%q: want true or false", bucket.Redacted(), name, text)
			}
			parameters[key] = value
		}
	}
	return Storage{"s3", parameters}, nil
}
