//go:build s3

package objects

import _ "gocloud.dev/blob/s3blob" // s3://BUCKET?region=…; doubles the binary, hence the tag
