"""`request.py PORT PATH`: one HTTP request to this machine; exits with 0 when the answer is 200."""

import http.client
import sys

connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=600)
connection.request("GET", sys.argv[2])
sys.exit(connection.getresponse().status != 200)
