// Program grpcxds calls Services by xds:/// names with gRPC for Go, as the bootstrap that GRPC_XDS_BOOTSTRAP names says.
//
// For each line of standard input, "call TARGET COUNT", it makes so many calls one after the other and prints a line of
// JSON: how many each backend answered, what failed, and how long it took.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	_ "google.golang.org/grpc/xds"
)

const (
	method  = "/test.Echo/Say"
	timeout = 20 * time.Second
)

// raw hands bytes on as they are.
type raw struct{}

func (raw) Marshal(value any) ([]byte, error) { return *value.(*[]byte), nil }
func (raw) Unmarshal(data []byte, value any) error {
	*value.(*[]byte) = bytes.Clone(data)
	return nil
}
func (raw) Name() string { return "raw" }

type told struct {
	Answered map[string]int `json:"answered"`
	Failed   map[string]int `json:"failed"`
	Seconds  float64        `json:"s"`
}

func call(connection *grpc.ClientConn) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var question, answer []byte
	err := connection.Invoke(ctx, method, &question, &answer)
	return string(answer), err
}

func main() {
	connections := map[string]*grpc.ClientConn{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		target := words[1]
		count, err := strconv.Atoi(words[2])
		if err != nil {
			log.Fatal(err)
		}
		if connections[target] == nil {
			plain := grpc.WithTransportCredentials(insecure.NewCredentials())
			connections[target], err = grpc.NewClient(target, plain, grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
			if err != nil {
				log.Fatal(err)
			}
		}
		seen := told{Answered: map[string]int{}, Failed: map[string]int{}}
		began := time.Now()
		for range count {
			if answer, err := call(connections[target]); err != nil {
				seen.Failed[fmt.Sprintf("%s: %s", status.Code(err), status.Convert(err).Message())]++
			} else {
				seen.Answered[answer]++
			}
		}
		seen.Seconds = time.Since(began).Seconds()
		text, err := json.Marshal(seen)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(text))
	}
}
