"""Creates a bucket on each server that run_emulators started."""

import base64
import hashlib
import hmac
import os
import sys
from email.utils import formatdate
from urllib.request import Request, urlopen

BUCKET = sys.argv[1]
# Azurite's account and key, which are the same in every installation.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def put(url, headers):
    urlopen(Request(url, method="PUT", headers=headers), timeout=30).close()


put(f"{os.environ['AWS_ENDPOINT']}/{BUCKET}", {})

headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
path = f"/{ACCOUNT}/{BUCKET}"
signed = [f"{name}:{value}" for name, value in headers.items()]
signed = "\n".join(["PUT", *[""] * 11, *signed, f"/{ACCOUNT}{path}", "restype:container"])
signature = hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)
headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"
put(f"{os.environ['AZURITE_BLOB_STORAGE_URL']}{path}?restype=container", headers)
