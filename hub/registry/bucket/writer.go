package bucket

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/distribution/distribution/v3/registry/storage/driver"
	"gocloud.dev/gcerrors"
)

// partSize is the size of the parts of an upload, in bytes. S3 wants 5 MiB at least, except for the
// last part, and 10,000 parts at most. A file has at most maxParts × partSize = 156 GiB.
const (
	partSize = 16 << 20
	maxParts = 10_000
)

// restSuffix ends the key of the object with the rest of an unfinished file: the bytes that are in
// no part yet. The object begins with a line of JSON: see rest.
const restSuffix = ".rest"

// rest is what Writer needs to go on with a file. An upload may have more than Parts parts, from a
// writer that ended without Close. The next writer uploads these parts again.
type rest struct {
	Upload string `json:"upload,omitempty"` // ID of the upload on S3; empty: there is none yet
	Parts  int32  `json:"parts,omitempty"`
}

// writer writes a file. A full part is uploaded while the next one is filled; Close keeps the rest
// for a later writer. A file of less than a part is one object.
type writer struct {
	files *files
	ctx   context.Context
	path  string

	rest
	parts    []types.CompletedPart
	size     int64
	complete bool          // an earlier writer has completed the file, and has not deleted the rest
	buffer   *bytes.Buffer // of less than a part
	spare    *bytes.Buffer // the part in flight, or empty
	flight   chan error    // gets the result of the part in flight; nil: there is none
	ended    bool          // Commit or Cancel was called
	err      error         // of Write: the file is incomplete
}

var _ driver.FileWriter = (*writer)(nil)

// Writer returns a writer of a new file or, with more, of one that is not committed yet. The caller
// closes it. At most one writer of a file may be open at a time.
func (f *files) Writer(ctx context.Context, path string, more bool) (driver.FileWriter, error) {
	w := &writer{files: f, ctx: ctx, path: path, buffer: new(bytes.Buffer), spare: new(bytes.Buffer)}
	if !more {
		return w, nil
	}
	content, err := f.bucket.ReadAll(ctx, f.key(path)+restSuffix)
	if gcerrors.Code(err) == gcerrors.NotFound { // a committed file can only be continued if it is empty
		info, err := f.Stat(ctx, path)
		if err == nil && (info.IsDir() || info.Size() > 0) {
			err = errComplete
		}
		return w, err
	}
	if err != nil {
		return nil, err
	}
	head, tail, _ := bytes.Cut(content, []byte("\n"))
	if err := json.Unmarshal(head, &w.rest); err != nil {
		return nil, fmt.Errorf("object %s: %w", f.key(path)+restSuffix, err)
	}
	w.buffer.Write(tail)
	w.size = int64(len(tail))
	err = w.listParts()
	if isNoUpload(err) {
		if info, statErr := f.Stat(ctx, path); statErr == nil && !info.IsDir() {
			w.complete, w.size = true, info.Size()
			w.buffer.Reset()
			return w, nil
		}
	}
	return w, err
}

var errComplete = errors.New("a complete file cannot be continued")

// listParts finds the parts that were uploaded before.
func (w *writer) listParts() error {
	if w.Upload == "" {
		return nil
	}
	pages := s3.NewListPartsPaginator(w.files.client,
		&s3.ListPartsInput{Bucket: &w.files.name, Key: aws.String(w.files.key(w.path)), UploadId: &w.Upload})
	for pages.HasMorePages() && int32(len(w.parts)) < w.Parts {
		page, err := pages.NextPage(w.ctx)
		if err != nil {
			return fmt.Errorf("list the parts of %s: %w", w.files.key(w.path), err)
		}
		for _, p := range page.Parts {
			if number := aws.ToInt32(p.PartNumber); number == int32(len(w.parts))+1 && number <= w.Parts {
				w.parts = append(w.parts, types.CompletedPart{ETag: p.ETag, PartNumber: p.PartNumber,
					ChecksumCRC32: p.ChecksumCRC32})
				w.size += aws.ToInt64(p.Size)
			}
		}
	}
	if int32(len(w.parts)) < w.Parts {
		return fmt.Errorf("upload %s of %s has lost parts", w.Upload, w.files.key(w.path))
	}
	return nil
}

// Write appends to the file. The error may be about bytes of an earlier call.
func (w *writer) Write(b []byte) (n int, err error) {
	if w.ended || w.err != nil {
		return 0, errors.Join(errors.New("write to an ended file"), w.err)
	}
	if w.complete && len(b) > 0 {
		return 0, errComplete
	}
	for len(b) > 0 {
		some := b[:min(len(b), partSize-w.buffer.Len())]
		w.buffer.Write(some)
		b, n = b[len(some):], n+len(some)
		w.size += int64(len(some))
		if w.buffer.Len() == partSize {
			if w.err = w.beginPart(w.ctx); w.err != nil {
				return n, w.err
			}
		}
	}
	return n, nil
}

// beginPart begins to upload the buffer as the next part, after the part before it was uploaded.
func (w *writer) beginPart(ctx context.Context) (err error) {
	if err := w.awaitPart(); err != nil {
		return err
	}
	if w.Upload == "" {
		w.Upload, err = w.files.beginUpload(ctx, w.files.key(w.path), types.ChecksumAlgorithmCrc32)
		if err != nil {
			return err
		}
	}
	number := int32(len(w.parts)) + 1
	if number > maxParts {
		return fmt.Errorf("file %s: more than %d bytes", w.path, int64(maxParts)*partSize)
	}
	w.buffer, w.spare = w.spare, w.buffer
	w.flight = make(chan error, 1)
	go func() { w.flight <- w.uploadPart(ctx, number, w.spare.Bytes()) }()
	return nil
}

// uploadPart uploads a part and notes it.
func (w *writer) uploadPart(ctx context.Context, number int32, content []byte) error {
	done, err := w.files.client.UploadPart(ctx, &s3.UploadPartInput{Bucket: &w.files.name,
		Key: aws.String(w.files.key(w.path)), UploadId: &w.Upload, PartNumber: &number, Body: bytes.NewReader(content)})
	if err != nil {
		return fmt.Errorf("upload part %d of %s: %w", number, w.files.key(w.path), err)
	}
	w.parts = append(w.parts, types.CompletedPart{ETag: done.ETag, PartNumber: &number,
		ChecksumCRC32: done.ChecksumCRC32})
	return nil
}

// awaitPart waits for the part in flight. After an error the file is incomplete.
func (w *writer) awaitPart() error {
	if w.flight == nil {
		return w.err
	}
	w.err = <-w.flight
	w.flight = nil
	w.spare.Reset()
	return w.err
}

// Size returns the bytes of the file, including those of previous writers.
func (w *writer) Size() int64 { return w.size }

// Close keeps what was written for a later writer, unless Commit or Cancel was called.
func (w *writer) Close() error {
	if w.ended || w.complete {
		return nil
	}
	w.ended = true
	if err := w.awaitPart(); err != nil { // a later writer goes on where this one began
		return err
	}
	w.Parts = int32(len(w.parts))
	head, err := json.Marshal(w.rest)
	if err != nil {
		return err
	}
	content := append(append(head, '\n'), w.buffer.Bytes()...)
	return w.files.bucket.WriteAll(context.WithoutCancel(w.ctx), w.files.key(w.path)+restSuffix, content, noSniffing)
}

// Commit makes the file readable.
func (w *writer) Commit(ctx context.Context) error {
	if err := w.awaitPart(); w.ended || err != nil {
		return errors.Join(errors.New("commit of an ended file"), err)
	}
	if err := w.store(ctx); err != nil {
		return err
	}
	w.ended = true
	return w.forget(ctx)
}

func (w *writer) store(ctx context.Context) error {
	if w.complete {
		return nil
	}
	if w.Upload == "" {
		return w.files.bucket.WriteAll(ctx, w.files.key(w.path), w.buffer.Bytes(), noSniffing)
	}
	if w.buffer.Len() > 0 {
		if err := w.beginPart(ctx); err != nil {
			return err
		}
		if err := w.awaitPart(); err != nil {
			return err
		}
	}
	return w.files.completeUpload(ctx, w.files.key(w.path), w.Upload, w.parts, w.size)
}

// forget deletes the rest that an earlier writer has kept, if there is one.
func (w *writer) forget(ctx context.Context) error {
	err := w.files.bucket.Delete(ctx, w.files.key(w.path)+restSuffix)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil
	}
	return err
}

// Cancel deletes what was written.
func (w *writer) Cancel(ctx context.Context) error {
	_ = w.awaitPart() // whatever it has uploaded is deleted
	w.ended = true
	if w.Upload != "" {
		if err := w.files.abortUpload(ctx, w.files.key(w.path), w.Upload); err != nil {
			return err
		}
	}
	return w.forget(ctx)
}

// beginUpload begins an upload, whose parts have checksums if there is an algorithm.
func (f *files) beginUpload(
	ctx context.Context, key string, checksums types.ChecksumAlgorithm,
) (upload string, err error) {
	begun, err := f.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &f.name, Key: &key,
		ContentType: &noSniffing.ContentType, ChecksumAlgorithm: checksums})
	if err != nil {
		return "", fmt.Errorf("begin upload of %s: %w", key, err)
	}
	return aws.ToString(begun.UploadId), nil
}

// completeUpload makes an object of the parts of an upload. size is the sum of their sizes.
func (f *files) completeUpload(
	ctx context.Context, key, upload string, parts []types.CompletedPart, size int64,
) error {
	_, err := f.client.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{Bucket: &f.name, Key: &key,
		UploadId: &upload, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts}})
	// If the answer was lost, the upload may have been completed: the next request finds no upload.
	if err == nil || f.isComplete(ctx, key, parts, size) {
		return nil
	}
	return fmt.Errorf("complete upload of %s: %w", key, err)
}

// isComplete reports whether there is an object of that size. If S3 has a composite checksum of the
// object, it has to be the checksum of parts.
func (f *files) isComplete(ctx context.Context, key string, parts []types.CompletedPart, size int64) bool {
	found, err := f.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &f.name, Key: &key,
		ChecksumMode: types.ChecksumModeEnabled})
	if err != nil || aws.ToInt64(found.ContentLength) != size {
		return false
	}
	composite := aws.ToString(found.ChecksumCRC32)
	isKnown := strings.Contains(composite, "-") && parts[0].ChecksumCRC32 != nil
	return !isKnown || composite == checksumOf(parts)
}

// checksumOf returns S3's composite checksum of an object: the checksum of its parts' checksums,
// and the number of parts.
func checksumOf(parts []types.CompletedPart) string {
	all := crc32.NewIEEE()
	for _, p := range parts {
		sum, _ := base64.StdEncoding.DecodeString(aws.ToString(p.ChecksumCRC32)) // S3 has encoded it
		all.Write(sum)
	}
	return fmt.Sprintf("%s-%d", base64.StdEncoding.EncodeToString(all.Sum(nil)), len(parts))
}

// isNoUpload reports whether an error says that an upload has ended.
func isNoUpload(err error) bool {
	failed := smithy.APIError(nil)
	return errors.As(err, &failed) && failed.ErrorCode() == "NoSuchUpload"
}

// abortUpload ends an upload and deletes its parts. It is no error if the upload has ended.
func (f *files) abortUpload(ctx context.Context, key, upload string) error {
	_, err := f.client.AbortMultipartUpload(ctx,
		&s3.AbortMultipartUploadInput{Bucket: &f.name, Key: &key, UploadId: &upload})
	if err != nil && !isNoUpload(err) {
		return fmt.Errorf("abort upload of %s: %w", key, err)
	}
	return nil
}

// abortUploads ends the uploads whose keys begin with a prefix and are among those that are meant.
// It reports whether there were any.
func (f *files) abortUploads(ctx context.Context, prefix string, among func(key string) bool) (found bool, err error) {
	pages := s3.NewListMultipartUploadsPaginator(f.client,
		&s3.ListMultipartUploadsInput{Bucket: &f.name, Prefix: &prefix})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return found, fmt.Errorf("list uploads of %s: %w", prefix, err)
		}
		for _, u := range page.Uploads {
			of := aws.ToString(u.Key)
			if !among(of) {
				continue
			}
			found = true
			if err := f.abortUpload(ctx, of, aws.ToString(u.UploadId)); err != nil {
				return found, err
			}
		}
	}
	return found, nil
}
