package registry

import (
	"errors"
	"io"
	"log/slog"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/sirupsen/logrus"
)

// mapNotFound returns ErrNotFound for the library's errors about something that does not exist, and
// other errors as they are.
func mapNotFound(err error) error {
	switch {
	case errors.Is(err, distribution.ErrBlobUnknown), errors.As(err, new(distribution.ErrTagUnknown)),
		errors.As(err, new(distribution.ErrRepositoryUnknown)), errors.As(err, new(distribution.ErrManifestUnknown)),
		errors.As(err, new(distribution.ErrManifestUnknownRevision)), errors.As(err, new(driver.PathNotFoundError)):
		return ErrNotFound
	}
	return err
}

// routeLogs sends the library's error messages to log. The level is debug, because the library also
// logs clients' mistakes as errors. The messages' fields are dropped: they contain upload tokens
// and clients' headers. The library has one logger for the process.
func routeLogs(log *slog.Logger) {
	logrus.SetOutput(io.Discard)
	logrus.SetLevel(logrus.ErrorLevel)
	logrus.StandardLogger().ReplaceHooks(logrus.LevelHooks{logrus.ErrorLevel: {&hook{log}}})
}

type hook struct{ log *slog.Logger }

func (h *hook) Levels() []logrus.Level { return []logrus.Level{logrus.ErrorLevel} }

func (h *hook) Fire(entry *logrus.Entry) error {
	h.log.Debug("error message of the registry library", "message", entry.Message)
	return nil
}
