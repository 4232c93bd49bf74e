package objects

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/logging"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob" // also registers s3://BUCKET?region=…
)

// stallParameter is the parameter of a bucket's URL that replaces stallTimeout.
const stallParameter = "stall_timeout"

// OpenS3 opens the bucket at an S3 URL as gocloud.dev reads it, except that it ignores the
// parameter "prefix". A request that stalls for longer than stallTimeout ends. The parameter
// "stall_timeout" replaces this limit. S3's checksums are compared only if the URL asks for that:
// digests are compared anyway, and the SDK would write a line to standard error for each object
// that was uploaded in parts. The caller closes the bucket.
func OpenS3(ctx context.Context, u url.URL) (*blob.Bucket, error) {
	const checksums = "response_checksum_validation"
	query, stall := u.Query(), stallTimeout
	if !query.Has(checksums) {
		query.Set(checksums, "when_required")
	}
	if text := query.Get(stallParameter); text != "" {
		var err error
		if stall, err = time.ParseDuration(text); err != nil || stall <= 0 {
			return nil, fmt.Errorf("%s=%s is not a duration like 90s", stallParameter, text)
		}
	}
	query.Del(stallParameter)
	query.Del("prefix")
	u.RawQuery = query.Encode()
	unlimited, err := blob.OpenBucket(ctx, u.String()) // reads the other parameters
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "open bucket "+u.String()+": ")) // the caller names it
	}
	defer unlimited.Close() // which does nothing on S3
	client := (*s3.Client)(nil)
	if !unlimited.As(&client) {
		return nil, errors.New("the bucket is not on S3")
	}
	credentials, err := loggingCredentials(ctx, query)
	if err != nil {
		return nil, err
	}
	limited := s3.New(client.Options(), func(o *s3.Options) {
		o.HTTPClient = newStallClient(stall)
		o.Logger = sdkLog
		if credentials != nil {
			o.Credentials = credentials
		}
		if o.Credentials != nil { // otherwise requests are not signed
			o.Credentials = boundedCredentials{o.Credentials, stall}
		}
	})
	options := &s3blob.Options{KMSEncryptionID: query.Get("kmskeyid"),
		RequestChecksumCalculation: limited.Options().RequestChecksumCalculation}
	for _, known := range types.ServerSideEncryption("").Values() {
		if strings.EqualFold(string(known), query.Get("ssetype")) {
			options.EncryptionType = known
		}
	}
	return s3blob.OpenBucket(ctx, limited, u.Host, options)
}

// sdkLog has what the SDK would write to standard error.
var sdkLog = logging.LoggerFunc(func(_ logging.Classification, format string, args ...any) {
	slog.Default().Debug("message of the AWS SDK", "text", fmt.Sprintf(format, args...))
})

// loggingCredentials returns the credentials that the SDK finds for a URL's query, from a provider
// that logs to sdkLog; or nil if the URL says where to take them from.
func loggingCredentials(ctx context.Context, query url.Values) (aws.CredentialsProvider, error) {
	if query.Has("anonymous") || query.Has("role") {
		return nil, nil
	}
	loaded, err := config.LoadDefaultConfig(ctx, config.WithLogger(sdkLog), config.WithRegion(query.Get("region")),
		config.WithSharedConfigProfile(query.Get("profile")))
	return loaded.Credentials, err
}

// CheckS3 returns an error if OpenS3 cannot read a URL: it may have an unknown parameter, or an
// invalid value. It connects to nothing.
func CheckS3(u url.URL) error {
	b, err := OpenS3(context.Background(), u)
	if err != nil {
		return err
	}
	return b.Close()
}

// deletePage is the number of objects in one request to S3, which is its maximum.
const deletePage = 1000

// DeleteKeys deletes objects of a bucket on S3 with one request for each thousand. It is no error
// if an object does not exist. It returns the objects that the server could not delete, with the
// reasons, and an error if a request has failed: then the objects after it are not deleted.
func DeleteKeys(
	ctx context.Context, client *s3.Client, bucket string, keys []string,
) (failed []types.Error, err error) {
	for page := range slices.Chunk(keys, deletePage) {
		request := &types.Delete{Quiet: aws.Bool(true)} // the answer has errors only
		for _, key := range page {
			request.Objects = append(request.Objects, types.ObjectIdentifier{Key: &key})
		}
		done, err := client.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: &bucket, Delete: request})
		if err != nil {
			return failed, fmt.Errorf("delete %d objects: %w", len(page), err)
		}
		failed = append(failed, done.Errors...)
	}
	return failed, nil
}

// deleteMany deletes objects on S3.
func (s *Store) deleteMany(ctx context.Context, client *s3.Client, keys []string) error {
	prefixed := make([]string, len(keys))
	for i, key := range keys {
		prefixed[i] = s.s3Prefix + key
	}
	failed, err := DeleteKeys(ctx, client, s.s3Bucket, prefixed)
	var errs []error
	for _, one := range failed {
		errs = append(errs, fmt.Errorf("delete object %s: %s: %s",
			aws.ToString(one.Key), aws.ToString(one.Code), aws.ToString(one.Message)))
	}
	return errors.Join(append(errs, err)...)
}

// put uploads a file to S3 with one request. The library would upload parts of 8 MiB, which take
// memory here and which the server would join.
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
