package objects

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"gocloud.dev/blob"
	_ "gocloud.dev/blob/s3blob" // s3://BUCKET?region=…
)

// WithoutChecksums returns the URL of a bucket whose client does not compare S3's checksums, unless
// the URL asks for that. Digests are compared anyway, and the SDK writes a line to standard error
// for each object that was uploaded in parts.
func WithoutChecksums(u url.URL) string {
	const key = "response_checksum_validation"
	if query := u.Query(); u.Scheme == "s3" && !query.Has(key) {
		query.Set(key, "when_required")
		u.RawQuery = query.Encode()
	}
	return u.String()
}

// deletePage is the number of objects in one request to S3, which is its maximum.
const deletePage = 1000

// deleteMany deletes objects on S3 with one request for a thousand of them.
func (s *Store) deleteMany(ctx context.Context, client *s3.Client, keys []string) error {
	var errs []error
	for page := range slices.Chunk(keys, deletePage) {
		request := &types.Delete{Quiet: aws.Bool(true)} // the answer has errors only
		for _, key := range page {
			request.Objects = append(request.Objects, types.ObjectIdentifier{Key: aws.String(s.s3Prefix + key)})
		}
		done, err := client.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: aws.String(s.s3Bucket), Delete: request})
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("delete %d objects: %w", len(page), err))...)
		}
		for _, failed := range done.Errors {
			errs = append(errs, fmt.Errorf("delete object %s: %s: %s",
				aws.ToString(failed.Key), aws.ToString(failed.Code), aws.ToString(failed.Message)))
		}
	}
	return errors.Join(errs...)
}

// put uploads a file to S3 with one request. The library would upload parts of 8 MiB, which it
// holds in memory and which the server puts together again.
func (s *Store) put(ctx context.Context, key string, file *os.File) error {
	contentType := "application/octet-stream"
	client := (*s3.Client)(nil)
	if !s.bucket.As(&client) { // a bucket in memory, in tests
		return s.bucket.Upload(ctx, key, file, &blob.WriterOptions{ContentType: contentType})
	}
	_, err := client.PutObject(ctx, &s3.PutObjectInput{Bucket: &s.s3Bucket, Key: aws.String(s.s3Prefix + key),
		Body: file, ContentType: &contentType})
	return err
}
